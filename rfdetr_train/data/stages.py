"""What augmentations do to a picture. Each draws from the rng that it is given and from nothing else.

Those that make one picture of several know boxes, not outlines: what is pasted is a rectangle.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import InterpolationMode, functional

from rfdetr_train.boxes import iou_and_giou
from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import (
    GROUND_RGB,
    STRETCH,
    Canvas,
    Placement,
    SizePx,
    cropped,
    fitted,
    ground,
    pasted,
    resized,
    visible,
)
from rfdetr_train.dotted_path import build
from rfdetr_train.errors import UserError

LUMINANCE_OF_RGB = (0.299, 0.587, 0.114)  # ITU-R BT.601
SHORT_SIDES_PX = (400, 500, 600)  # resize before the crop: of the shorter side
_CROP_SIDES_PX = (384, 600)  # smallest and largest side of the square crop
_IOU_FLOORS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
_WINDOWS = 40  # tried by iou_crop
SMALLEST_WINDOW = 0.3  # share of the picture's side
_HUE_RADIANS = math.pi / 5  # largest turn at a strength of 1
_TILE_SHARES = (0.55, 0.9)  # side of a mosaic's picture, as a share of the view's
_MIXED_SHARES = (0.3, 0.5)  # of the other picture
_MOST_PASTED = 5
_PLACES = 20  # tried for each pasted box

Transform = Callable[[dict[str, Any]], dict[str, Any]]
"""A user's own: takes and gives `{"image": tv_tensors.Image, "boxes": tv_tensors.BoundingBoxes, "labels": tensor}`."""


def resize_crop(canvas: Canvas, rng: np.random.Generator, min_visible: float, view_px: SizePx = (1, 1)) -> Canvas:
    """Resize the shorter side to 400, 500 or 600 pixels, then cut out a square of 384 to 600 (as far as it fits).

    For a view that is no square, a rectangle of its shape, whose shorter side is so long.
    """
    canvas = resized(canvas, int(rng.choice(SHORT_SIDES_PX)))
    height, width = canvas.size_px
    tall, wide = (side / min(view_px) for side in view_px)
    largest = int(min(_CROP_SIDES_PX[1], height / tall, width / wide))
    side = int(rng.integers(min(_CROP_SIDES_PX[0], largest), largest, endpoint=True))
    crop_height, crop_width = round(side * tall), round(side * wide)
    top = int(rng.integers(0, height - crop_height, endpoint=True))
    left = int(rng.integers(0, width - crop_width, endpoint=True))
    return cropped(canvas, top, left, crop_height, crop_width, min_visible)


def iou_crop(canvas: Canvas, rng: np.random.Generator, min_visible: float) -> Canvas:
    """SSD's crop (arXiv 1512.02325): a window of 0.3 to 1 of each side whose IoU with some box exceeds a random floor.

    The window's aspect ratio is at most twice or half the picture's. A picture without boxes takes any such window, and
    one in which no window of 40 will do stays whole.
    """
    floor = rng.choice(_IOU_FLOORS)
    shares = rng.uniform(SMALLEST_WINDOW, 1.0, (_WINDOWS, 2))
    sides = np.ceil(shares * canvas.size_px).astype(np.int64)
    corners = (rng.random((_WINDOWS, 2)) * (canvas.size_px - sides + 1)).astype(np.int64)
    suits = np.abs(np.log2(shares[:, 0] / shares[:, 1])) <= 1
    if len(canvas.labels):
        windows_xyxy = torch.from_numpy(np.hstack([corners, corners + sides])[:, [1, 0, 3, 2]])
        iou, _ = iou_and_giou(windows_xyxy[:, None], canvas.boxes_xyxy[None])
        suits &= (iou.amax(dim=1) > floor).numpy()
    if not suits.any():
        return canvas
    first = suits.argmax()
    (top, left), (height, width) = corners[first].tolist(), sides[first].tolist()
    return cropped(canvas, top, left, height, width, min_visible)


def quarter_turn(canvas: Canvas, rng: np.random.Generator) -> Canvas:
    """Turn by 90 degrees to the left or to the right."""
    return canvas.apply(functional.rotate, 90 if rng.random() < 0.5 else 270, expand=True)


def zoom_out(canvas: Canvas, rng: np.random.Generator, most: float) -> Canvas:
    """The picture up to `most` times smaller, anywhere on plain ground of its former size."""
    height, width = canvas.size_px
    factor = rng.uniform(1.0, most)
    small = resized(canvas, math.ceil(height / factor), math.ceil(width / factor))
    top = int(rng.integers(0, height - small.size_px[0], endpoint=True))
    left = int(rng.integers(0, width - small.size_px[1], endpoint=True))
    return pasted(ground((height, width)), small, top, left)


def affine(canvas: Canvas, rng: np.random.Generator, recipe: AugmentationConfig) -> Canvas:
    """A small rotation, zoom and shift around the middle; a box becomes the one that encloses its corners."""
    height, width = canvas.size_px
    degrees, scale, across, down = rng.uniform(-1, 1, 4).tolist()
    colour = torch.tensor(GROUND_RGB).view(3, 1, 1)
    above = canvas.image.contiguous() - colour.float()  # so that the zeros from outside are ground, without a dark seam
    moved = canvas._replace(image=above).apply(
        functional.affine,
        angle=degrees * recipe.affine_degrees,
        translate=[across * recipe.affine_translate * width, down * recipe.affine_translate * height],
        scale=(1 + recipe.affine_scale) ** scale,
        shear=[0.0, 0.0],
        interpolation=InterpolationMode.BILINEAR,
    )
    image = (moved.image + colour).round_().clamp_(0, 255).to(torch.uint8)
    return visible(moved._replace(image=image), recipe.min_visible)


def photometric(canvas: Canvas, rng: np.random.Generator, strength: float) -> Canvas:
    """Another contrast (about the mean grey), saturation, brightness and hue, as one linear map of the colours.

    torchvision's four functions, one after the other, take ten times as long.
    """
    contrast, saturation, brightness, hue = rng.uniform(-1, 1, 4).tolist()
    pixels = canvas.image.contiguous().float().flatten(1)
    luma = torch.tensor(LUMINANCE_OF_RGB)
    grey = luma.expand(3, 3)
    colours = grey + (1 + strength) ** saturation * (_turn_about_grey(hue * strength * _HUE_RADIANS) - grey)
    gain, spread = (1 + strength / 4) ** brightness, (1 + strength) ** contrast
    mean = luma @ pixels.mean(dim=1)
    mapped = torch.addmm(gain * (1 - spread) * mean, gain * spread * colours, pixels)
    return canvas._replace(image=mapped.round_().clamp_(0, 255).to(torch.uint8).view(canvas.image.shape))


def _turn_about_grey(angle: float) -> torch.Tensor:
    """(3, 3): RGB turned about the line of greys by `angle` in radians (Rodrigues)."""
    a = (1 - math.cos(angle)) / 3
    b = math.sin(angle) / math.sqrt(3)
    c = math.cos(angle) + a
    return torch.tensor([[c, a - b, a + b], [a + b, c, a - b], [a - b, a + b, c]])


def mosaic(
    four: Sequence[Canvas],
    size_px: SizePx,
    rng: np.random.Generator,
    min_visible: float,
    placement: Placement = STRETCH,
) -> Canvas:
    """Four pictures that meet at a random point of a view of size_px (height, width), cut by its border.

    As in YOLOv4 (arXiv 2004.10934); each picture is shrunk to the same share of the view, 0.55 to 0.9.
    """
    share = rng.uniform(*_TILE_SHARES)
    height, width = (math.ceil(share * side) for side in size_px)
    row = int(rng.integers(size_px[0] - height, height, endpoint=True))
    column = int(rng.integers(size_px[1] - width, width, endpoint=True))
    canvas = ground(size_px)
    for number, picture in enumerate(four):
        tile = fitted(picture, (height, width), placement)
        top = row - tile.size_px[0] if number < 2 else row
        left = column - tile.size_px[1] if number % 2 == 0 else column
        canvas = pasted(canvas, tile, top, left, min_visible)
    return canvas


def mixup(canvas: Canvas, other: Canvas, rng: np.random.Generator) -> Canvas:
    """`other`, of the same size, shines through with 0.3 to 0.5 of its colours (arXiv 1710.09412); all boxes count."""
    mixed = torch.lerp(canvas.image.float(), other.image.float(), float(rng.uniform(*_MIXED_SHARES)))
    boxes = torch.cat([canvas.boxes_xyxy, other.boxes_xyxy])
    return Canvas(mixed.round_().to(torch.uint8), boxes, torch.cat([canvas.labels, other.labels]))


def copy_paste(canvas: Canvas, other: Canvas, rng: np.random.Generator, min_visible: float) -> Canvas:
    """Up to five boxes of `other` with what they show, pasted where they cover no box (after arXiv 2012.07177).

    What other boxes have inside such a crop comes with them. A crop that finds no place in 20 is left out.
    """
    count = int(rng.integers(1, _MOST_PASTED, endpoint=True))
    for row in rng.permutation(len(other.labels))[:count]:
        x1, y1, x2, y2 = other.boxes_xyxy[row].tolist()
        top, left = math.floor(y1), math.floor(x1)
        crop = cropped(other, top, left, math.ceil(y2) - top, math.ceil(x2) - left, min_visible)
        place = _free_place(canvas, crop.size_px, rng)
        if place is not None:
            canvas = pasted(canvas, crop, *place)
    return canvas


def _free_place(canvas: Canvas, size_px: SizePx, rng: np.random.Generator) -> tuple[int, int] | None:
    """(top, left) of a rectangle of size_px (height, width) that meets no box, or None if none of 20 does not."""
    room = np.array(canvas.size_px) - size_px
    corners = (rng.random((_PLACES, 2)) * (room + 1)).astype(np.int64)
    x1, y1, x2, y2 = canvas.boxes_xyxy.numpy().T
    top, left = corners[:, :1], corners[:, 1:]
    meets = (top < y2) & (top + size_px[0] > y1) & (left < x2) & (left + size_px[1] > x1)
    free = np.flatnonzero(~meets.any(axis=1))
    return (int(corners[free[0], 0]), int(corners[free[0], 1])) if len(free) else None


def build_transforms(entries: Sequence[dict[str, Any]]) -> list[Transform]:
    """The transforms that `augmentation.extra` names. Raises: UserError for a path or arguments that will not do."""
    transforms = build(list(entries), "augmentation.extra")
    for index, (transform, entry) in enumerate(zip(transforms, entries, strict=True)):
        if not callable(transform):
            raise UserError(
                f"augmentation.extra[{index}]._target_={entry['_target_']}: makes nothing that can be called"
            )
    return transforms


def apply_transforms(
    transforms: Sequence[Transform], canvas: Canvas, rng: np.random.Generator, min_visible: float
) -> Canvas:
    """The canvas after all transforms; boxes as `canvas.visible` leaves them.

    Raises: UserError that names a transform which fails, changes the size of the picture, or gives no uint8 picture
    with a label for each box.
    """
    image = tv_tensors.Image(canvas.image.clone())
    sample = {"image": image, "boxes": canvas.tv_boxes(), "labels": canvas.labels}
    with _global_generators_seeded(int(rng.integers(2**32))):
        for transform in transforms:
            try:
                sample = transform(sample)
                _check(sample, canvas.size_px)
            except Exception as error:
                raise UserError(f"augmentation.extra: {transform} fails: {type(error).__name__}: {error}") from error
    boxes = functional.convert_bounding_box_format(sample["boxes"], new_format="XYXY").as_subclass(torch.Tensor)
    return visible(Canvas(sample["image"].as_subclass(torch.Tensor), boxes, sample["labels"]), min_visible)


def _check(sample: dict[str, Any], size_px: SizePx) -> None:
    image, boxes, labels = sample["image"], sample["boxes"], sample["labels"]
    if image.dtype != torch.uint8 or image.shape[0] != 3:
        raise ValueError(f"its picture is {image.dtype} {tuple(image.shape)}, and should stay uint8 (3, height, width)")
    if image.shape[1:] != size_px:
        raise ValueError(f"it makes a picture of {size_px} {tuple(image.shape[1:])}; model.resolution sets the size")
    if not isinstance(boxes, tv_tensors.BoundingBoxes) or len(boxes) != len(labels):
        raise ValueError(f"it gives {len(boxes)} {type(boxes).__name__} with {len(labels)} labels")


@contextmanager
def _global_generators_seeded(seed: int) -> Iterator[None]:
    """Within, the global generators start at `seed` (below 2^32); behind, they go on as if nothing had been drawn."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach CUDA's generators too
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])
