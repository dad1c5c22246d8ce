"""From the rows of any format to a `Split`: labels, clean boxes, and an account of what was left out."""

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from rfdetr_train.boxes import xywh_to_xyxy, xyxy_to_xywh
from rfdetr_train.data.raw_split import Category, RawSplit
from rfdetr_train.data.sample import FlatStrings, Split
from rfdetr_train.errors import UserError, did_you_mean, listed
from rfdetr_train.labels import LabelMap

log = logging.getLogger(__name__)

_NO_GROUP = (None, "", "none")  # what files write when a category has no supercategory


def build_split(
    raw: RawSplit, name: str, class_of_name: Mapping[str, str] | None = None, label_map: LabelMap | None = None
) -> Split:
    """The split `name` under `label_map`, or, where that is None, under the one that it decides itself, as train does.

    `class_of_name` is what `data.classes` says: the class of each category name that is kept; None keeps all.

    Raises: UserError for two pictures with one id, for a category that the label map lacks, and, where this split
    decides, for no picture or no box.
    """
    _check_images(raw)
    # 1. boxes under their pictures; those of no picture are orphans
    rows = _rows_of_pictures(raw)
    # 2. clipped to the pictures; those with nothing left are degenerate
    boxes_xywh, clipped = clip_boxes(raw.boxes_xywh[rows], raw.sizes_px[raw.owners[rows]])
    usable = _usable(raw, rows, boxes_xywh)
    # 3. the annotated area belongs to the annotated box: a clipped box gets its own
    areas = np.where(clipped | ~(raw.areas[rows] > 0), boxes_xywh[:, 2] * boxes_xywh[:, 3], raw.areas[rows])
    # 4. labels; what `class_of_name` leaves out has none
    used_ids, position = np.unique(raw.category_ids[rows[usable]], return_inverse=True)
    decided = label_map or decide_label_map(raw.categories, used_ids.tolist(), class_of_name, raw.source)
    labels = np.array(_labels_of(used_ids.tolist(), raw, class_of_name, decided), dtype=np.int64)[position]
    kept = np.flatnonzero(usable)[labels >= 0]
    crowd = raw.crowd[rows[kept]]
    if crowd.any():
        message = "%s: %d boxes are difficult or crowds: no targets of training, ignored by the score"
        log.info(message, raw.source, crowd.sum())
    if label_map is None and crowd.all():
        missing = "usable box" if len(raw.image_ids) else "pictures"
        if class_of_name is not None and usable.any():
            missing += f" of data.classes, {listed(class_of_name)}"
        raise UserError(f"{raw.source}: the {name} split has no {missing}; there is nothing to learn from")
    return Split(
        name=name,
        folder=raw.folder,
        label_map=decided,
        file_names=FlatStrings(raw.file_names),
        image_ids=raw.image_ids,
        sizes_px=raw.sizes_px,
        boxes_xywh=boxes_xywh[kept],
        labels=labels[labels >= 0],
        areas=areas[kept],
        crowd=crowd,
        offsets=np.searchsorted(raw.owners[rows[kept]], np.arange(len(raw.image_ids) + 1)),
        dropped={
            "degenerate_boxes": int((~usable).sum()),
            "orphan_annotations": len(raw.owners) - len(rows),
            "boxes_of_other_classes": int((labels < 0).sum()),
        },
    )


def clip_boxes(boxes_xywh: np.ndarray, sizes_px: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Clip boxes to their pictures.

    Args: boxes_xywh (M, 4) in pixels; sizes_px (M, 2), (height, width) of each box's picture.
    Returns: the clipped boxes (M, 4), those that lay inside unchanged to the bit, and bool (M,), which were clipped. A
    box with nothing inside its picture gets a width or height of 0 or less.
    """
    corners = xywh_to_xyxy(boxes_xywh)
    inside = np.clip(corners, 0, np.tile(sizes_px[:, ::-1], (1, 2)))
    clipped = (inside != corners).any(axis=1)
    return np.where(clipped[:, None], xyxy_to_xywh(inside), boxes_xywh), clipped


def decide_label_map(
    categories: Collection[Category],
    ids_with_boxes: Collection[int],
    class_of_name: Mapping[str, str] | None,
    source: Path,
) -> LabelMap:
    """Labels in the order of rising category id; a class that `class_of_name` joins has the lowest id of its members.

    Without `class_of_name`, every category is a class but the grouping ones.

    Raises: UserError for boxes of a category without a row, for a name that two classes share, and for names in
    `class_of_name` that are none of the data set.
    """
    unlisted = sorted(set(ids_with_boxes) - {c.category_id for c in categories})
    if unlisted:
        raise UserError(f"{source}: boxes of category {unlisted[0]}, which is not in the file's category table; add it")
    if class_of_name is None:
        classes = _without_groups(categories, ids_with_boxes)
        _refuse_one_name_twice(classes, source)
    else:
        classes = _joined(categories, class_of_name, source)
    classes.sort()
    return LabelMap(tuple(c.category_id for c in classes), tuple(c.name for c in classes))


def _without_groups(categories: Collection[Category], ids_with_boxes: Collection[int]) -> list[Category]:
    """A category is a group, and no class, if another names it as its supercategory and no box is its own.

    Roboflow's exports put such a root in front, sometimes with a class's own name. A category without boxes that groups
    nothing stays a class, for its boxes may be in another split.
    """
    parents = {(c.supercategory, c.category_id) for c in categories if c.supercategory not in _NO_GROUP}
    grouping = {c for c in categories if any(parent == c.name and child != c.category_id for parent, child in parents)}
    groups = {c for c in grouping if c.category_id not in ids_with_boxes}
    for group in sorted(groups):
        log.info("category %d (%s) groups others and has no boxes: it is no class", group.category_id, group.name)
    return [c for c in categories if c not in groups]


def _refuse_one_name_twice(classes: Sequence[Category], source: Path) -> None:
    """Two classes that nobody can tell apart by name: no score of either would mean anything."""
    id_of_name: dict[str, int] = {}
    for category in classes:
        first_id = id_of_name.setdefault(category.name, category.category_id)
        if first_id != category.category_id:
            raise UserError(
                f"{source}: categories {first_id} and {category.category_id} are both called "
                f"{category.name!r}; rename one, or list the wanted names in data.classes, which takes them as one"
            )


def _joined(categories: Collection[Category], class_of_name: Mapping[str, str], source: Path) -> list[Category]:
    names = {c.name for c in categories}
    for name in (name for name in class_of_name if name not in names):
        hint = did_you_mean(name, names) or f"its classes are {listed(sorted(names))}"
        raise UserError(f"data.classes: {source} has no class {name!r}; {hint}")
    taken = set(class_of_name.values()) & names - set(class_of_name)
    if taken:
        raise UserError(
            f"data.classes: {min(taken)!r} is a class of the data set as well, but none of those that it joins; list "
            "it with them, or choose another name"
        )
    lowest_id: dict[str, int] = {}
    for category in sorted(categories):
        if category.name in class_of_name:
            lowest_id.setdefault(class_of_name[category.name], category.category_id)
    return [Category(category_id, name) for name, category_id in lowest_id.items()]


def _labels_of(
    used_ids: Sequence[int], raw: RawSplit, class_of_name: Mapping[str, str] | None, label_map: LabelMap
) -> list[int]:
    """The label of each id; -1 for what `class_of_name` leaves out."""
    known = dict(zip(label_map.category_ids, label_map.names, strict=True))
    label_of_name = {name: label for label, name in enumerate(label_map.names)}
    name_of_id = {**known, **{c.category_id: c.name for c in raw.categories}}
    if class_of_name is not None:
        names = [name_of_id.get(category_id, "") for category_id in used_ids]
        # a data set that calls the joined class by its name is as good
        return [label_of_name.get(class_of_name.get(name, name), -1) for name in names]
    for category_id in used_ids:
        name = name_of_id.get(category_id, "")
        if name not in label_of_name if raw.names_decide else category_id not in known:
            what = name if raw.names_decide else category_id
            classes = listed(f"{known_id} {known_name}" for known_id, known_name in known.items())
            raise UserError(
                f"{raw.source}: boxes of category {what}, which is no class of the train split (its classes: "
                f"{classes}); add such boxes to the train split or remove them here"
            )
        if not raw.names_decide and name != known[category_id]:
            raise UserError(
                f"{raw.source}: category {category_id} is {name!r} here but {known[category_id]!r} in the train split; "
                "give both files the same category table"
            )
    return [label_of_name[name_of_id[category_id]] for category_id in used_ids]


def _check_images(raw: RawSplit) -> None:
    for image_id, count in Counter(raw.image_ids.tolist()).items():
        if count > 1:
            raise UserError(f"{raw.source}: image id {image_id} is given to {count} pictures; ids must be unique")
    file_names = list(map(os.path.normpath, raw.file_names))  # ./a.jpg is a.jpg
    if len(set(file_names)) < len(file_names):
        ids_of_file = defaultdict(list)
        for image_id, file_name in zip(raw.image_ids.tolist(), file_names, strict=True):
            ids_of_file[file_name].append(image_id)
        shared = [f"{file_name} under ids {ids}" for file_name, ids in ids_of_file.items() if len(ids) > 1]
        log.warning("%s: %d files stand under several image ids: %s", raw.source, len(shared), listed(shared))


def _rows_of_pictures(raw: RawSplit) -> np.ndarray:
    """int64, the boxes that are of a picture, in the order of the pictures."""
    orphans = np.flatnonzero(raw.owners < 0)
    if len(orphans):
        wanted = listed(dict.fromkeys(raw.box_image_ids[orphans].tolist()))
        message = "%s: %d dropped: annotations of image ids that are not in the file: %s"
        log.warning(message, raw.source, len(orphans), wanted)
    return np.argsort(raw.owners, kind="stable")[len(orphans) :]


def _usable(raw: RawSplit, rows: np.ndarray, clipped_xywh: np.ndarray) -> np.ndarray:
    """bool (rows,): has the box something inside its picture? Judged in the precision that it trains in."""
    corners = xywh_to_xyxy(clipped_xywh).astype(np.float32)
    usable = np.all(corners[:, 2:] > corners[:, :2], axis=1)
    if not usable.all():
        message = "%s: %d dropped of %d boxes, with no area inside their picture: %s"
        log.warning(message, raw.source, (~usable).sum(), len(usable), raw.describe(rows[~usable].tolist()))
    cut = usable & (clipped_xywh[:, 2:].prod(axis=1) < 0.5 * raw.boxes_xywh[rows, 2:].prod(axis=1))
    if cut.any():
        message = "%s: %d boxes of %d lie more than half outside their picture, and are cut to it: %s"
        log.warning(message, raw.source, cut.sum(), len(cut), raw.describe(rows[cut].tolist()))
    return usable
