"""Augmentations that make one picture of several. They know boxes, not outlines: what is pasted is a rectangle."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from rfdetr_train.data.canvas import Canvas, cropped, fitted, ground, pasted
from rfdetr_train.data.placement import STRETCH, Placement, SizePx

_TILE_SHARES = (0.55, 0.9)  # side of a mosaic's picture, as a share of the view's
_MIXED_SHARES = (0.3, 0.5)  # of the other picture
_MOST_PASTED = 5
_PLACES = 20  # tried for each pasted box


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


def _free_place(canvas: Canvas, size_px: tuple[int, int], rng: np.random.Generator) -> tuple[int, int] | None:
    """(top, left) of a rectangle of size_px (height, width) that meets no box, or None if none of 20 does not."""
    room = np.array(canvas.size_px) - size_px
    corners = (rng.random((_PLACES, 2)) * (room + 1)).astype(np.int64)
    x1, y1, x2, y2 = canvas.boxes_xyxy.numpy().T
    top, left = corners[:, :1], corners[:, 1:]
    meets = (top < y2) & (top + size_px[0] > y1) & (left < x2) & (left + size_px[1] > x1)
    free = np.flatnonzero(~meets.any(axis=1))
    return (int(corners[free[0], 0]), int(corners[free[0], 1])) if len(free) else None
