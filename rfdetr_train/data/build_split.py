"""From the rows of any format to a `Split`: clean boxes under one label map, and an account of what was left out."""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rfdetr_train.data.categories import decide_label_map
from rfdetr_train.data.listing import listed
from rfdetr_train.data.raw_split import RawSplit
from rfdetr_train.data.sample import FlatStrings, Split
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

log = logging.getLogger(__name__)


def build_split(
    raw: RawSplit, name: str, class_of_name: Mapping[str, str] | None = None, label_map: LabelMap | None = None
) -> Split:
    """The split `name` under `label_map`, or, where that is None, under the one that it decides itself, as train does.

    `class_of_name` is what `data.classes` says: the class of each category name that is kept; None keeps all.

    Raises: UserError for two pictures with one id, for a category that the label map lacks, and, where this split
    decides, for no picture or no box.
    """
    _check_images(raw)
    boxes = _usable_boxes(raw)
    used_ids, position = np.unique(raw.category_ids[boxes.rows], return_inverse=True)
    decided = label_map or decide_label_map(raw.categories, used_ids.tolist(), class_of_name, raw.source)
    labels = np.array(_labels_of(used_ids.tolist(), raw, class_of_name, decided), dtype=np.int64)[position]
    kept, crowd = labels >= 0, raw.crowd[boxes.rows]
    if (kept & crowd).any():
        message = "%s: %d boxes are difficult or crowds: no targets of training, ignored by the score"
        log.info(message, raw.source, (kept & crowd).sum())
    if label_map is None and not (kept & ~crowd).any():
        missing = "usable box" if len(raw.image_ids) else "pictures"
        if class_of_name is not None and len(boxes.rows):
            missing += f" of data.classes, {listed(class_of_name)}"
        raise UserError(f"{raw.source}: the {name} split has no {missing}; there is nothing to learn from")
    return Split(
        name=name,
        folder=raw.folder,
        label_map=decided,
        file_names=FlatStrings(raw.file_names),
        image_ids=raw.image_ids,
        sizes_px=raw.sizes_px,
        boxes_xywh=boxes.boxes_xywh[kept],
        labels=labels[kept],
        areas=boxes.areas[kept],
        crowd=crowd[kept],
        offsets=np.searchsorted(boxes.owners[kept], np.arange(len(raw.image_ids) + 1)),
        dropped={**boxes.dropped, "boxes_of_other_classes": int((~kept).sum())},
    )


class _UsableBoxes(NamedTuple):
    """The boxes with something inside their picture, in the order of the pictures. K of the M rows."""

    rows: np.ndarray  # int64 (K,), of the raw split
    owners: np.ndarray  # int64 (K,), index of each box's picture
    boxes_xywh: np.ndarray  # float64 (K, 4), clipped
    areas: np.ndarray  # float64 (K,)
    dropped: dict[str, int]


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
        ids_of_file: dict[str, list[int]] = {}
        for image_id, file_name in zip(raw.image_ids.tolist(), file_names, strict=True):
            ids_of_file.setdefault(file_name, []).append(image_id)
        shared = [f"{file_name} under ids {ids}" for file_name, ids in ids_of_file.items() if len(ids) > 1]
        log.warning("%s: %d files stand under several image ids: %s", raw.source, len(shared), listed(shared))


def _usable_boxes(raw: RawSplit) -> _UsableBoxes:
    # 1. boxes under their pictures; those of no picture are orphans
    orphans = np.flatnonzero(raw.owners < 0)
    if len(orphans):
        wanted = listed(dict.fromkeys(raw.box_image_ids[orphans].tolist()))
        message = "%s: %d dropped: annotations of image ids that are not in the file: %s"
        log.warning(message, raw.source, len(orphans), wanted)
    rows = np.argsort(raw.owners, kind="stable")[len(orphans) :]
    owners = raw.owners[rows]
    # 2. clipped to the pictures; those with nothing left are degenerate, judged in the precision that they train in
    boxes, clipped = clip_boxes(raw.boxes_xywh[rows], raw.sizes_px[owners])
    corners = np.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]]).astype(np.float32)
    usable = (corners[1] > corners[0]).all(axis=1)
    if not usable.all():
        message = "%s: %d dropped of %d boxes, with no area inside their picture: %s"
        log.warning(message, raw.source, (~usable).sum(), len(usable), raw.describe(rows[~usable].tolist()))
    cut = usable & (boxes[:, 2:].prod(axis=1) < 0.5 * raw.boxes_xywh[rows, 2:].prod(axis=1))
    if cut.any():
        message = "%s: %d boxes of %d lie more than half outside their picture, and are cut to it: %s"
        log.warning(message, raw.source, cut.sum(), len(cut), raw.describe(rows[cut].tolist()))
    # 3. the annotated area belongs to the annotated box: a clipped box gets its own
    annotated = raw.areas[rows]
    areas = np.where(clipped | ~(annotated > 0), boxes[:, 2] * boxes[:, 3], annotated)
    return _UsableBoxes(
        rows=rows[usable],
        owners=owners[usable],
        boxes_xywh=boxes[usable],
        areas=areas[usable],
        dropped={"degenerate_boxes": int((~usable).sum()), "orphan_annotations": len(orphans)},
    )


def clip_boxes(boxes_xywh: np.ndarray, sizes_px: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Clip boxes to their pictures.

    Args: boxes_xywh (M, 4) in pixels; sizes_px (M, 2), (height, width) of each box's picture.
    Returns: the clipped boxes (M, 4), those that lay inside unchanged to the bit, and bool (M,), which were clipped. A
    box with nothing inside its picture gets a width or height of 0 or less.
    """
    corners = np.concatenate([boxes_xywh[:, :2], boxes_xywh[:, :2] + boxes_xywh[:, 2:]], axis=1)
    inside = np.clip(corners, 0, np.tile(sizes_px[:, ::-1], (1, 2)))
    clipped = (inside != corners).any(axis=1)
    as_xywh = np.concatenate([inside[:, :2], inside[:, 2:] - inside[:, :2]], axis=1)
    return np.where(clipped[:, None], as_xywh, boxes_xywh), clipped
