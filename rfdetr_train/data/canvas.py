"""A picture with its boxes, in its own pixels, and how it is fitted, cut and laid on another one.

A view, the size of the network's input, is filled by stretching the picture over it or by letterboxing. A letterboxed
picture lies in the upper left; below it and to its right is padding. Its boxes are fractions of its frame, the picture
rounded up to whole strides: there a token of every level ends, so that the network, which counts in tokens, sees boxes
where they are.

Nothing here changes a tensor that it is given: a cache may own it. Letters: n boxes of a picture, H and W its sides.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from rfdetr_train.config import ModelConfig

GROUND_RGB = (124, 116, 104)  # where no picture is: ImageNet's mean, which the network sees as 0

SizePx = tuple[int, int]
"""(height, width) in pixels."""


class Placement(NamedTuple):
    """What `data.resize` and the model's input make of pictures."""

    letterbox: bool = False
    """Keep the aspect ratio. The published weights expect False: both sides stretched to those of the view."""
    stride_px: int = 1
    aspect: float = 1.0
    """Width of a view over its height."""

    @classmethod
    def of(cls, resize: str, model: ModelConfig) -> "Placement":
        """From `data.resize`, stretch or letterbox."""
        height, width = model.size_px
        return cls(resize == "letterbox", model.stride, width / height)

    def view_px(self, height_px: int) -> SizePx:
        """The size of a view of this height; the width is rounded to whole strides."""
        return height_px, max(1, round(height_px * self.aspect / self.stride_px)) * self.stride_px

    def picture_px(self, picture_px: SizePx, view_px: SizePx) -> SizePx:
        """The size of a picture in its view: the view's, or the largest of the picture's own shape that fits."""
        if not self.letterbox:
            return view_px
        scale = min(view_px[0] / picture_px[0], view_px[1] / picture_px[1])
        height, width = (max(1, round(scale * side)) for side in picture_px)
        return height, width

    def frame_px(self, picture_px: SizePx) -> SizePx:
        """What boxes in the view are fractions of, for a picture of picture_px there."""
        height, width = (-(-side // self.stride_px) * self.stride_px for side in picture_px)
        return height, width


STRETCH = Placement()


class Canvas(NamedTuple):
    """A picture with its boxes in its own pixels; both go through every transform together."""

    image: torch.Tensor
    """uint8 (3, H, W), RGB."""
    boxes_xyxy: torch.Tensor
    """float32 (n, 4)."""
    labels: torch.Tensor
    """int64 (n,)."""

    @classmethod
    def of(cls, image: torch.Tensor, boxes_xyxy: np.ndarray, labels: np.ndarray, size_px: SizePx) -> "Canvas":
        """From boxes in the pixels of the annotated size, which may differ from the picture's."""
        scale = np.array([image.shape[-1] / size_px[1], image.shape[-2] / size_px[0]] * 2, dtype=np.float32)
        return cls(image, torch.from_numpy(boxes_xyxy * scale), torch.from_numpy(labels))

    @property
    def size_px(self) -> SizePx:
        """Of the picture."""
        return self.image.shape[-2], self.image.shape[-1]

    def apply(self, transform: Callable, *args: Any, **kwargs: Any) -> "Canvas":
        """The canvas after a function of torchvision.transforms.v2.functional; its boxes may stick out of it."""
        boxes = transform(self.tv_boxes(), *args, **kwargs).as_subclass(torch.Tensor)
        return Canvas(transform(self.image, *args, **kwargs), boxes, self.labels)

    def tv_boxes(self) -> tv_tensors.BoundingBoxes:
        """The boxes as torchvision knows them."""
        return tv_tensors.BoundingBoxes(self.boxes_xyxy, format="XYXY", canvas_size=self.size_px, clamping_mode=None)

    def with_boxes(self, kept: torch.Tensor) -> "Canvas":
        """The canvas with some of its boxes; kept: bool (n,)."""
        return Canvas(self.image, self.boxes_xyxy[kept], self.labels[kept])


def resized(canvas: Canvas, *size_px: int) -> Canvas:
    """To height, width, or to a shorter side with the aspect ratio kept; bilinear with antialias."""
    return canvas.apply(functional.resize, list(size_px), antialias=True)


def fitted(canvas: Canvas, size_px: SizePx, placement: Placement = STRETCH) -> Canvas:
    """The picture for a place of size_px: stretched to it, or as large as it can be there in its own shape."""
    return resized(canvas, *placement.picture_px(canvas.size_px, size_px))


def visible(canvas: Canvas, min_visible: float) -> Canvas:
    """Boxes cut to the picture; those of which no area or less than the share min_visible is left are dropped."""
    height, width = canvas.size_px
    boxes = torch.minimum(canvas.boxes_xyxy.clamp(min=0), torch.tensor([width, height, width, height]))
    sides, sides_before = (b[:, 2:] - b[:, :2] for b in (boxes, canvas.boxes_xyxy))
    kept = (sides > 0).all(dim=1) & (sides.prod(dim=1) >= min_visible * sides_before.prod(dim=1))
    return canvas._replace(boxes_xyxy=boxes).with_boxes(kept)


def cropped(canvas: Canvas, top: int, left: int, height: int, width: int, min_visible: float) -> Canvas:
    """The part that begins at (top, left), inside the picture; boxes as `visible` leaves them."""
    return visible(canvas.apply(functional.crop, top, left, height, width), min_visible)


def ground(size_px: SizePx) -> Canvas:
    """A canvas of size_px with nothing on it."""
    image = torch.tensor(GROUND_RGB, dtype=torch.uint8).view(3, 1, 1).expand(3, *size_px)
    return Canvas(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


def padded(canvas: Canvas, size_px: SizePx) -> Canvas:
    """The picture in the upper left of plain ground of size_px; as it is where it has that size."""
    return canvas if canvas.size_px == size_px else pasted(ground(size_px), canvas, 0, 0)


def pasted(canvas: Canvas, piece: Canvas, top: int, left: int, min_visible: float = 0.0) -> Canvas:
    """`piece` laid on the canvas with its corner at (top, left), and cut where it sticks out; it hides no box."""
    (height, width), (piece_height, piece_width) = canvas.size_px, piece.size_px
    upper, lower = max(top, 0), min(top + piece_height, height)
    near, far = max(left, 0), min(left + piece_width, width)
    piece = cropped(piece, upper - top, near - left, lower - upper, far - near, min_visible)
    image = canvas.image.clone(memory_format=torch.contiguous_format)
    image[:, upper:lower, near:far] = piece.image
    boxes = piece.boxes_xyxy + torch.tensor([near, upper, near, upper])
    return Canvas(image, torch.cat([canvas.boxes_xyxy, boxes]), torch.cat([canvas.labels, piece.labels]))
