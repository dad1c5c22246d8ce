"""Pictures and boxes on their way to the network: the random view for training, the plain one for evaluation.

The recipe is DETR's (arXiv 2005.12872) as RF-DETR trains with it: either a plain resize to the square input, or resize,
random square crop, resize; then a left-right flip. Letters: n boxes of a picture, S side of the square view.
"""

from typing import NamedTuple

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional

from rfdetr_train.config import AugmentationConfig

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LUMINANCE_OF_RGB = (0.299, 0.587, 0.114)  # ITU-R BT.601

_SHORT_SIDES_PX = (400, 500, 600)  # resize before the crop: of the shorter side
_CROP_SIDES_PX = (384, 600)  # smallest and largest side of the square crop
_SCALE_STEPS = 5  # training scales: up to so many strides below and above the model's resolution
_FEWEST_STRIDES = 2  # no training scale is smaller than this


class View(NamedTuple):
    """A picture as the network sees it, with the boxes that are left in it."""

    image: torch.Tensor
    """uint8 (3, S, S), RGB."""
    boxes_cxcywh: torch.Tensor
    """float32 (n, 4), 0..1."""
    labels: torch.Tensor
    """int64 (n,)."""


class _Canvas(NamedTuple):
    """A picture with its boxes in its own pixels; both go through every transform together."""

    image: tv_tensors.Image
    boxes: tv_tensors.BoundingBoxes
    labels: torch.Tensor

    def apply(self, transform, *args, **kwargs) -> "_Canvas":
        """The canvas after a function of torchvision.transforms.v2.functional."""
        return self._replace(image=transform(self.image, *args, **kwargs), boxes=transform(self.boxes, *args, **kwargs))


def evaluation_view(
    image: torch.Tensor, boxes_xyxy: np.ndarray, labels: np.ndarray, size_px: tuple[int, int], side_px: int
) -> View:
    """Resize to side_px x side_px, bilinear with antialias, the aspect ratio not kept.

    Args: image uint8 (3, height, width); boxes_xyxy float32 (n, 4) in the pixels of the annotated size_px (height,
    width), which may differ from the picture's; labels int64 (n,).
    """
    return _view(_resized(_canvas(image, boxes_xyxy, labels, size_px), [side_px, side_px]))


def training_view(
    image: torch.Tensor,
    boxes_xyxy: np.ndarray,
    labels: np.ndarray,
    size_px: tuple[int, int],
    side_px: int,
    augmentation: AugmentationConfig,
    rng: np.random.Generator,
) -> View:
    """A random view of side_px x side_px; arguments as of `evaluation_view`.

    A box cut by the crop keeps the part inside; one left with no area is dropped with its label.
    """
    flip = rng.random() < augmentation.horizontal_flip
    crop = rng.random() < augmentation.resize_crop
    canvas = _canvas(image, boxes_xyxy, labels, size_px)
    if crop:
        canvas = _random_crop(canvas, rng)
    canvas = _resized(canvas, [side_px, side_px])
    if flip:
        canvas = canvas.apply(functional.horizontal_flip)
    return _view(canvas)


def normalise(images: torch.Tensor, input_channels: int = 3) -> torch.Tensor:
    """uint8 (B, 3, S, S) -> float32 (B, input_channels, S, S), 0..1 less ImageNet's mean, over its standard deviation.

    One channel is the luminance, with the means of the three channels' mean and deviation.
    """
    mean, std, luminance = (
        torch.tensor(values, device=images.device).view(3, 1, 1)
        for values in (IMAGENET_MEAN, IMAGENET_STD, LUMINANCE_OF_RGB)
    )
    if input_channels == 1:
        images, mean, std = (images * luminance).sum(dim=1, keepdim=True), mean.mean(), std.mean()
    return (images.float() / 255 - mean) / std


def training_scales(resolution_px: int, stride_px: int) -> list[int]:
    """The sides that multi-scale training draws from: five strides below to five above the model's resolution."""
    centre = resolution_px // stride_px
    return [stride_px * n for n in range(max(centre - _SCALE_STEPS, _FEWEST_STRIDES), centre + _SCALE_STEPS + 1)]


def source_side_px(largest_side_px: int, augmentation: AugmentationConfig) -> int:
    """The longest side in pixels to which views of at most `largest_side_px` resize the shorter side of a picture."""
    return max(largest_side_px, max(_SHORT_SIDES_PX) if augmentation.resize_crop else 0)


def _canvas(image: torch.Tensor, boxes_xyxy: np.ndarray, labels: np.ndarray, size_px: tuple[int, int]) -> _Canvas:
    height, width = image.shape[-2:]
    scale = np.array([width / size_px[1], height / size_px[0]] * 2, dtype=np.float32)
    boxes = tv_tensors.BoundingBoxes(torch.from_numpy(boxes_xyxy * scale), format="XYXY", canvas_size=(height, width))
    return _Canvas(tv_tensors.Image(image), boxes, torch.from_numpy(labels))


def _resized(canvas: _Canvas, size: list[int]) -> _Canvas:
    """To size [height, width], or [shorter side] with the aspect ratio kept."""
    return canvas.apply(functional.resize, size, antialias=True)


def _random_crop(canvas: _Canvas, rng: np.random.Generator) -> _Canvas:
    """Resize the shorter side to 400, 500 or 600 pixels, then cut out a square of 384 to 600 (as far as it fits)."""
    canvas = _resized(canvas, [int(rng.choice(_SHORT_SIDES_PX))])
    height, width = canvas.image.shape[-2:]
    largest = min(_CROP_SIDES_PX[1], height, width)
    side = int(rng.integers(min(_CROP_SIDES_PX[0], largest), largest, endpoint=True))
    top = int(rng.integers(0, height - side, endpoint=True))
    left = int(rng.integers(0, width - side, endpoint=True))
    canvas = canvas.apply(functional.crop, top, left, side, side)
    kept = (canvas.boxes[:, 2] > canvas.boxes[:, 0]) & (canvas.boxes[:, 3] > canvas.boxes[:, 1])
    boxes = tv_tensors.wrap(canvas.boxes.as_subclass(torch.Tensor)[kept], like=canvas.boxes)
    return canvas._replace(boxes=boxes, labels=canvas.labels[kept])


def _view(canvas: _Canvas) -> View:
    side = canvas.image.shape[-1]
    boxes = functional.convert_bounding_box_format(canvas.boxes, new_format="CXCYWH")
    return View(canvas.image.as_subclass(torch.Tensor), boxes.as_subclass(torch.Tensor) / side, canvas.labels)
