"""Boxes that cannot be right or are hard to learn; classes and ids: rare, missing, called the same, numbered oddly."""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from rfdetr_train.boxes import iou_and_giou, xywh_to_xyxy
from rfdetr_train.config import ModelConfig
from rfdetr_train.data.build_split import clip_boxes
from rfdetr_train.data.canvas import Placement
from rfdetr_train.data.doctor.examined import EXAMPLES, ExaminedSplit, Finding, neighbours

SAME_IOU = 0.95
SMALL_PX = 8
MANY_SMALL = 0.1  # of the boxes: from here on it is a warning
OUTSIDE_PX = 1.0  # by how much a box may overhang its picture without a word; tools round
FEW_BOXES = 20  # of a class in train


def check_boxes(split: ExaminedSplit, model: ModelConfig, placement: Placement) -> Iterator[Finding]:
    """Boxes without area, outside, twice, of two classes, too small, too many."""
    yield from _misplaced(split)
    yield from _repeated(split)
    side_px = sides_in_view_px(split, model, placement)
    small = split.rows[(side_px > 0) & (side_px < SMALL_PX)]
    severity = "warning" if len(small) >= MANY_SMALL * len(split.rows) else "note"
    what = f"boxes under {SMALL_PX} px (root of the area) at the model's {model.size_px[1]}x{model.size_px[0]}"
    yield from split.of_boxes("small_boxes", severity, what, small, "raise model.resolution, or train on tiles")
    counts = {i: count for i, count in enumerate(split.boxes_per_picture.tolist()) if count > model.num_queries}
    crowded = {i: f"{count} objects" for i, count in counts.items()}
    what = f"pictures with more objects than model.num_queries={model.num_queries}"
    remedy = "raise model.num_queries, or train on tiles: the model finds no more than that"
    yield from split.of_pictures("crowded_pictures", "warning", what, crowded, remedy)


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
    rows = split.rows[(split.raw.boxes_xywh[split.rows, 2:] > 0).all(axis=1)]
    boxes_xyxy = torch.from_numpy(xywh_to_xyxy(split.raw.boxes_xywh[rows]))
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


def count_classes(splits: Mapping[str, ExaminedSplit]) -> dict[str, dict[str, int]]:
    """Boxes of each class in each split; classes without a box as well."""
    counts = {name: Counter(split.names[row] for row in split.rows) for name, split in splits.items()}
    tables = [c.name for split in splits.values() if split.class_of_name is None for c in split.raw.categories]
    wanted = [name for split in splits.values() for name in (split.class_of_name or {}).values()]
    names = dict.fromkeys([*tables, *wanted, *(name for count in counts.values() for name in count)])
    return {name: {split: counts[split][name] for split in splits} for name in names}


def check_classes(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Classes that are rare, or in one split only, or called the same but for case and blanks."""
    boxes = {name: f"{name}: {', '.join(f'{n} {split}' for split, n in row.items())}" for name, row in counts.items()}
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, row in counts.items():
        train = row.get("train", 0)
        if not any(row.values()):
            kinds["boxless_classes"].append(name)
        elif not train and "train" in row:
            kinds["unlearnt_classes"].append(boxes[name])
        elif train < FEW_BOXES and "train" in row:
            kinds["rare_classes"].append(boxes[name])
        if train and row.get("valid") == 0:
            kinds["unscored_classes"].append(boxes[name])
    twins: dict[str, list[str]] = defaultdict(list)
    for name in counts:
        twins[" ".join(name.casefold().split())].append(name)
    kinds["twin_classes"] = [" and ".join(map(repr, names)) for names in twins.values() if len(names) > 1]
    for kind, severity, what, remedy in (
        ("unlearnt_classes", "warning", "classes without a box in train", "move some pictures there"),
        ("rare_classes", "warning", f"classes with less than {FEW_BOXES} boxes in train",
         "label more, draw them more often with data.repeat_threshold, or join classes with data.classes"),
        ("unscored_classes", "warning", "classes without a box in valid", "move some pictures there: they have no AP"),
        ("twin_classes", "warning", "names of classes that differ in case or blanks only", "join them in data.classes"),
        ("boxless_classes", "note", "categories without any box", "nothing, if they only group others"),
    ):  # fmt: skip
        if examples := kinds[kind]:
            yield Finding(kind, severity, "", what, len(examples), examples[:EXAMPLES], remedy, [])


def check_ids(split: ExaminedSplit) -> Iterator[Finding]:
    """Annotations of no picture, ids given twice, holes among the ids of categories."""
    raw = split.raw
    orphans = np.flatnonzero(raw.owners < 0)
    remedy = "remove them, or add their pictures; training drops them"
    yield from split.of_boxes("orphan_boxes", "warning", "annotations of pictures not in the file", orphans, remedy)
    names = [name for name, count in Counter(map(os.path.normpath, raw.file_names)).items() if count > 1]
    yield from split.of_ids("shared_files", "warning", "files under several image ids", names, "keep one of them")
    if raw.box_ids is not None:
        twice = [str(box_id) for box_id, count in Counter(raw.box_ids.tolist()).items() if count > 1]
        remedy = "nothing here, where boxes are numbered anew; pycocotools scores such a file wrongly and says nothing"
        yield from split.of_ids("shared_box_ids", "note", "annotation ids given to several boxes", twice, remedy)
    ids = sorted(category.category_id for category in raw.categories)
    holes = [] if raw.names_decide or not ids else sorted(set(range(ids[0], min(ids[-1], ids[0] + 10_000))) - set(ids))
    remedy = "nothing here, where classes are numbered anew; other programs may take them for classes"
    yield from split.of_ids("id_holes", "note", "category ids left out", list(map(str, holes)), remedy)
