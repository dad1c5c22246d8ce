"""Boxes that cannot be right, or that are hard to learn."""

from collections.abc import Iterator

import numpy as np
import torch

from rfdetr_train.boxes import iou_and_giou
from rfdetr_train.config import ModelConfig
from rfdetr_train.data.build_split import clip_boxes
from rfdetr_train.data.doctor.examined import ExaminedSplit, neighbours
from rfdetr_train.data.doctor.finding import Finding
from rfdetr_train.data.placement import Placement

SAME_IOU = 0.95
SMALL_PX = 8
MANY_SMALL = 0.1  # of the boxes: from here on it is a warning
OUTSIDE_PX = 1.0  # by how much a box may overhang its picture without a word; tools round


def check_boxes(split: ExaminedSplit, model: ModelConfig, placement: Placement) -> Iterator[Finding]:
    """Boxes without area, outside, twice, of two classes, too small, too many."""
    yield from _misplaced(split)
    yield from _repeated(split)
    side_px = sides_in_view_px(split, model, placement)
    small = split.rows[(side_px > 0) & (side_px < SMALL_PX)]
    yield from split.of_boxes(
        "small_boxes",
        "warning" if len(small) >= MANY_SMALL * len(split.rows) else "note",
        f"boxes under {SMALL_PX} px (root of the area) at the model's {_shown(model.size_px)}",
        small,
        "raise model.resolution, or train on tiles",
    )
    yield from split.of_pictures(
        "crowded_pictures",
        "warning",
        f"pictures with more objects than model.num_queries={model.num_queries}",
        {int(i): f"{split.boxes_per_picture[i]} objects"
         for i in np.flatnonzero(split.boxes_per_picture > model.num_queries)},
        "raise model.num_queries, or train on tiles: the model finds no more than that",
    )  # fmt: skip


def _shown(size_px: tuple[int, int]) -> str:
    return f"{size_px[1]}x{size_px[0]}"


def sides_in_view_px(split: ExaminedSplit, model: ModelConfig, placement: Placement) -> np.ndarray:
    """float64 (K,), the root of each box's area once its picture is brought to the model's input."""
    sizes_px = split.raw.sizes_px[split.raw.owners[split.rows]]
    scale = np.array(placement.view_px(model.resolution)) / np.maximum(sizes_px, 1)
    if placement.letterbox:
        scale[:] = scale.min(axis=1, keepdims=True)
    return np.sqrt((split.raw.boxes_xywh[split.rows, 2:].clip(min=0) * scale[:, ::-1]).prod(axis=1))


def _misplaced(split: ExaminedSplit) -> Iterator[Finding]:
    boxes_xywh, sizes_px = split.raw.boxes_xywh[split.rows], split.raw.sizes_px[split.raw.owners[split.rows]]
    inside = clip_boxes(boxes_xywh, sizes_px)[0]
    degenerate = (boxes_xywh[:, 2:] <= 0).any(axis=1)
    outside = ~degenerate & (inside[:, 2:] <= 0).any(axis=1)
    lost_px = np.maximum(inside[:, :2] - boxes_xywh[:, :2], (boxes_xywh - inside)[:, 2:]).max(axis=1, initial=0)
    overhanging = ~degenerate & ~outside & (lost_px > OUTSIDE_PX)
    for kind, what, found, remedy in (
        ("degenerate_boxes", "boxes without area", degenerate, "remove them; training drops them"),
        ("outside_boxes", "boxes outside their picture", outside, "correct or remove them; training drops them"),
        ("overhanging_boxes", f"boxes over the edge of their picture by more than {OUTSIDE_PX:g} px", overhanging,
         "correct them, if they are of another size of the picture; training cuts them at its edge"),
    ):  # fmt: skip
        yield from split.of_boxes(kind, "warning", what, split.rows[found], remedy)


def _repeated(split: ExaminedSplit) -> Iterator[Finding]:
    """Pairs of boxes in one picture that cover the same place."""
    xywh = split.raw.boxes_xywh[split.rows]
    rows = split.rows[(xywh[:, 2:] > 0).all(axis=1)]
    xywh = split.raw.boxes_xywh[rows]
    boxes_xyxy = torch.from_numpy(np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], axis=1))
    _, classes = np.unique([split.names[row] for row in rows], return_inverse=True)
    pairs: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for first, second in neighbours(split.raw.owners[rows]):
        same_place = iou_and_giou(boxes_xyxy[first], boxes_xyxy[second])[0].numpy() > SAME_IOU
        same_class = classes[first] == classes[second]
        for is_same, found in pairs.items():
            found.append(np.stack([first, second])[:, same_place & (same_class == is_same)])
    for kind, is_same, what, remedy in (
        ("duplicate_boxes", True, "boxes that repeat one of their class", "remove all but one: queries match one each"),
        ("contradicting_boxes", False, "boxes in the place of one of another class", "keep the class that is right"),
    ):
        if found := pairs[is_same]:
            first, second = np.concatenate(found, axis=1)
            involved = rows[np.union1d(first, second)]
            what = f"{what} (IoU > {SAME_IOU})"
            yield from split.of_boxes(kind, "warning", what, involved, remedy, len(np.unique(second)))
