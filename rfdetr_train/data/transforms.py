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
from rfdetr_train.data import stages
from rfdetr_train.data.canvas import STRETCH, Canvas, Placement, SizePx, fitted, padded
from rfdetr_train.data.sample import Batch

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

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


def evaluation_view(canvas: Canvas, side_px: int, placement: Placement = STRETCH) -> View:
    """Resize to a view side_px high as `placement` says, by default a square; bilinear with antialias."""
    view_px = placement.view_px(side_px)
    return _view(fitted(canvas, view_px, placement), view_px, placement)


def training_view(
    canvas: Canvas,
    side_px: int,
    recipe: AugmentationConfig,
    rng: np.random.Generator,
    another: Callable[[], Canvas] | None = None,
    extra: Sequence[stages.Transform] = (),
    placement: Placement = STRETCH,
) -> View:
    """A random view that is side_px high.

    `another` gives other pictures, drawn by `rng`, to recipes with mosaic, mixup or copy_paste; `extra` are the user's
    own transforms. A box cut by a stage keeps the part inside; one left with no area, or with less than the recipe
    demands, is dropped with its label.
    """
    view_px, min_visible = placement.view_px(side_px), recipe.min_visible

    def happens(stage: str) -> bool:
        """A stage that is off draws nothing, and so changes nothing in the others."""
        probability = getattr(recipe, stage)
        return probability > 0 and rng.random() < probability

    def other() -> Canvas:
        assert another is not None, "a composite needs other pictures"
        return another()

    flip = rng.random() < recipe.horizontal_flip
    crop = rng.random() < recipe.resize_crop
    # 1. in the pixels of the picture
    if happens("mosaic"):
        canvas = stages.mosaic([canvas, other(), other(), other()], view_px, rng, min_visible, placement)
    if happens("iou_crop"):
        canvas = stages.iou_crop(canvas, rng, min_visible)
    if crop:
        canvas = stages.resize_crop(canvas, rng, min_visible, view_px)
    if happens("quarter_turn"):
        canvas = stages.quarter_turn(canvas, rng)
    if happens("vertical_flip"):
        canvas = canvas.apply(functional.vertical_flip)
    canvas = fitted(canvas, view_px, placement)
    if flip:
        canvas = canvas.apply(functional.horizontal_flip)
    # 2. what should cost by the size of the picture in the view
    in_view_px = canvas.size_px
    if happens("copy_paste"):
        canvas = stages.copy_paste(canvas, fitted(other(), in_view_px, placement), rng, min_visible)
    if happens("mixup"):
        canvas = stages.mixup(canvas, padded(fitted(other(), in_view_px, placement), in_view_px), rng)
    if happens("zoom_out"):
        canvas = stages.zoom_out(canvas, rng, recipe.zoom_out_most)
    if happens("affine"):
        canvas = stages.affine(canvas, rng, recipe)
    if happens("photometric"):
        canvas = stages.photometric(canvas, rng, recipe.photometric_strength)
    if extra:
        canvas = stages.apply_transforms(extra, canvas, rng, min_visible)
    sides = canvas.boxes_xyxy[:, 2:] - canvas.boxes_xyxy[:, :2]
    return _view(canvas.with_boxes((sides >= recipe.min_box_px).all(dim=1)), view_px, placement)


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
        for values in (IMAGENET_MEAN, IMAGENET_STD, stages.LUMINANCE_OF_RGB)
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
        largest_side_px = math.ceil(largest_side_px / stages.SMALLEST_WINDOW)
    return max(largest_side_px, max(stages.SHORT_SIDES_PX) if augmentation.resize_crop else 0)


def _view(canvas: Canvas, view_px: SizePx, placement: Placement) -> View:
    height, width = frame_px = placement.frame_px(canvas.size_px)
    boxes = functional.convert_bounding_box_format(canvas.tv_boxes(), new_format="CXCYWH").as_subclass(torch.Tensor)
    boxes = boxes / torch.tensor([width, height] * 2)
    return View(padded(canvas, view_px).image, boxes, canvas.labels, canvas.size_px, frame_px)
