"""Pictures and boxes on their way to the network: the random view for training, the plain one for evaluation.

The reference recipe is DETR's (arXiv 2005.12872) as RF-DETR trains with it: either a plain resize to the input, or
resize, random square crop, resize; then a left-right flip. The other stages are off unless the augmentation says so.
Letters: n boxes of a picture, H x W pixels of the view.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torchvision.transforms.v2 import functional

from rfdetr_train.config import AugmentationConfig
from rfdetr_train.data.canvas import Canvas, Source, canvas_of, fitted, padded
from rfdetr_train.data.composites import copy_paste, mixup, mosaic
from rfdetr_train.data.placement import STRETCH, Placement, SizePx
from rfdetr_train.data.sample import Batch
from rfdetr_train.data.stages import (
    SHORT_SIDES_PX,
    SMALLEST_WINDOW,
    affine,
    iou_crop,
    photometric,
    quarter_turn,
    resize_crop,
    zoom_out,
)
from rfdetr_train.data.user_transforms import Transform, apply_transforms

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LUMINANCE_OF_RGB = (0.299, 0.587, 0.114)  # ITU-R BT.601

_SCALE_STEPS = 5  # training scales: up to so many strides below and above the model's resolution
_FEWEST_STRIDES = 2  # no training scale is smaller than this


class View(NamedTuple):
    """A picture as the network sees it, with the boxes that are left in it."""

    image: torch.Tensor
    """uint8 (3, H, W), RGB."""
    boxes_cxcywh: torch.Tensor
    """float32 (n, 4), 0..1, fractions of the frame."""
    labels: torch.Tensor
    """int64 (n,)."""
    picture_px: SizePx
    """Size of the picture in the view, whose upper left corner is its own."""
    frame_px: SizePx
    """The same, rounded up to whole strides: what lies outside is padding."""


def evaluation_view(
    image: torch.Tensor,
    boxes_xyxy: np.ndarray,
    labels: np.ndarray,
    size_px: SizePx,
    side_px: int,
    placement: Placement = STRETCH,
) -> View:
    """Resize to a view side_px high as `placement` says, by default a square; bilinear with antialias.

    Args: image uint8 (3, height, width); boxes_xyxy float32 (n, 4) in the pixels of the annotated size_px, which may
    differ from the picture's; labels int64 (n,).
    """
    view_px = placement.view_px(side_px)
    return _view(fitted(canvas_of((image, boxes_xyxy, labels, size_px)), view_px, placement), view_px, placement)


def training_view(
    image: torch.Tensor,
    boxes_xyxy: np.ndarray,
    labels: np.ndarray,
    size_px: SizePx,
    side_px: int,
    recipe: AugmentationConfig,
    rng: np.random.Generator,
    another: Callable[[], Source] | None = None,
    extra: Sequence[Transform] = (),
    placement: Placement = STRETCH,
) -> View:
    """A random view that is side_px high; arguments as of `evaluation_view`.

    `another` gives other pictures, drawn by `rng`, to recipes with mosaic, mixup or copy_paste; `extra` are the user's
    own transforms. A box cut by a stage keeps the part inside; one left with no area, or with less than the recipe
    demands, is dropped with its label.
    """
    view_px = placement.view_px(side_px)
    chance = _Chance(recipe, rng, another)
    flip = rng.random() < recipe.horizontal_flip
    crop = rng.random() < recipe.resize_crop
    canvas = canvas_of((image, boxes_xyxy, labels, size_px))

    if chance.of("mosaic"):
        four = [canvas, chance.other(), chance.other(), chance.other()]
        canvas = mosaic(four, view_px, rng, recipe.min_visible, placement)
    if chance.of("iou_crop"):
        canvas = iou_crop(canvas, rng, recipe.min_visible)
    if crop:
        canvas = resize_crop(canvas, rng, recipe.min_visible, view_px)
    if chance.of("quarter_turn"):
        canvas = quarter_turn(canvas, rng)
    if chance.of("vertical_flip"):
        canvas = canvas.apply(functional.vertical_flip)
    canvas = fitted(canvas, view_px, placement)
    if flip:
        canvas = canvas.apply(functional.horizontal_flip)
    canvas = _changed_in_the_view(canvas, chance, placement)
    if extra:
        canvas = apply_transforms(extra, canvas, rng, recipe.min_visible)
    return _view(_large_enough(canvas, recipe.min_box_px), view_px, placement)


def model_inputs(batch: Batch, input_channels: int = 3) -> tuple[torch.Tensor, ...]:
    """What the network takes: the images, normalised, and their padding where there is any."""
    padding = batch.padding()
    images = normalise(batch.images, input_channels)
    return (images,) if padding is None else (images, padding)


def normalise(images: torch.Tensor, input_channels: int = 3) -> torch.Tensor:
    """uint8 (B, 3, H, W) -> float32 (B, input_channels, H, W), 0..1 less ImageNet's mean, over its standard deviation.

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
    if augmentation.iou_crop:  # the smallest window fills a view
        largest_side_px = math.ceil(largest_side_px / SMALLEST_WINDOW)
    return max(largest_side_px, max(SHORT_SIDES_PX) if augmentation.resize_crop else 0)


class _Chance(NamedTuple):
    """What happens to a sample."""

    recipe: AugmentationConfig
    rng: np.random.Generator
    another: Callable[[], Source] | None

    def of(self, stage: str) -> bool:
        """Whether a stage happens; one that is off draws nothing, and so changes nothing in the others."""
        probability = getattr(self.recipe, stage)
        return probability > 0 and self.rng.random() < probability

    def other(self) -> Canvas:
        """Another picture."""
        assert self.another is not None, "a composite needs other pictures"
        return canvas_of(self.another())


def _changed_in_the_view(canvas: Canvas, chance: _Chance, placement: Placement) -> Canvas:
    """The stages whose cost should go by the size of the view and not by the picture's."""
    recipe, rng, view_px = chance.recipe, chance.rng, canvas.size_px
    if chance.of("copy_paste"):
        canvas = copy_paste(canvas, fitted(chance.other(), view_px, placement), rng, recipe.min_visible)
    if chance.of("mixup"):
        canvas = mixup(canvas, padded(fitted(chance.other(), view_px, placement), view_px), rng)
    if chance.of("zoom_out"):
        canvas = zoom_out(canvas, rng, recipe.zoom_out_most)
    if chance.of("affine"):
        canvas = affine(canvas, rng, recipe)
    if chance.of("photometric"):
        canvas = photometric(canvas, rng, recipe.photometric_strength)
    return canvas


def _large_enough(canvas: Canvas, min_box_px: float) -> Canvas:
    kept = (canvas.boxes_xyxy[:, 2:] - canvas.boxes_xyxy[:, :2] >= min_box_px).all(dim=1)
    return Canvas(canvas.image, canvas.boxes_xyxy[kept], canvas.labels[kept])


def _view(canvas: Canvas, view_px: SizePx, placement: Placement) -> View:
    height, width = frame_px = placement.frame_px(canvas.size_px)
    boxes = functional.convert_bounding_box_format(canvas.tv_boxes(), new_format="CXCYWH").as_subclass(torch.Tensor)
    boxes = boxes / torch.tensor([width, height] * 2)
    return View(padded(canvas, view_px).image, boxes, canvas.labels, canvas.size_px, frame_px)
