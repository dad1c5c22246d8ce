"""COCO JSON files -> `Split`s: clean boxes, one label map, and an account of what was left out."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rfdetr_train.data.categories import check_known, decide_label_map
from rfdetr_train.data.coco_boxes import annotated_box, clip_boxes
from rfdetr_train.data.coco_files import SplitFiles, absolute_root, check_inside, find_split, picture_folder
from rfdetr_train.data.coco_tables import AnnotationRow, CocoTables, ImageRow, read_tables
from rfdetr_train.data.listing import listed
from rfdetr_train.data.sample import Dataset, FlatStrings, Split
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

log = logging.getLogger(__name__)


def read_coco(root: str | Path, splits: Sequence[str] = ("train", "valid")) -> Dataset:
    """Read the named splits (train, valid, test); train decides the label map of all.

    Raises: UserError for a missing folder, file or split, broken JSON, wrong types, a train split without boxes, and a
    category that train does not know.
    """
    folder = absolute_root(root)
    files = {name: find_split(folder, name) for name in ("train", *splits)}  # all must be there before one is parsed
    train = _build_split("train", folder, files["train"], None)
    built = {"train": train}
    for name in splits:
        if name != "train":
            built[name] = _build_split(name, folder, files[name], train.label_map)
    return Dataset(folder, {name: built[name] for name in splits}, train.label_map)


def read_split(root: str | Path, name: str, label_map: LabelMap) -> Split:
    """Read one split under a label map that is decided already, as a checkpoint holds it.

    Raises: UserError as `read_coco`.
    """
    folder = absolute_root(root)
    return _build_split(name, folder, find_split(folder, name), label_map)


class _BoxRows(NamedTuple):
    """The annotations that can be used, in the order of their pictures."""

    owners: np.ndarray  # int64 (M,), index of each box's picture
    category_ids: np.ndarray  # int64 (M,)
    boxes_xywh: np.ndarray  # float64 (M, 4), clipped
    areas: np.ndarray  # float64 (M,)
    crowd: np.ndarray  # bool (M,)
    dropped: dict[str, int]


def _build_split(name: str, root: Path, files: SplitFiles, label_map: LabelMap | None) -> Split:
    tables = read_tables(files.annotations)
    file_names = [image.file_name for image in tables.images]
    _check_images(tables, files.annotations)
    folder = picture_folder(files, file_names)
    check_inside(root, folder, file_names, files.annotations)
    rows = _box_rows(tables, files.annotations)
    used_ids = set(rows.category_ids.tolist())
    label_map = label_map or _label_map_of_train(tables, used_ids, files.annotations)
    check_known(tables.categories, used_ids, label_map, files.annotations)
    label_of_id = label_map.label_of_id
    return Split(
        name=name,
        folder=folder,
        label_map=label_map,
        file_names=FlatStrings(file_names),
        image_ids=np.array([image.image_id for image in tables.images], dtype=np.int64),
        sizes_px=_sizes_px(tables),
        boxes_xywh=rows.boxes_xywh,
        labels=np.array([label_of_id[category_id] for category_id in rows.category_ids.tolist()], dtype=np.int64),
        areas=rows.areas,
        crowd=rows.crowd,
        offsets=np.searchsorted(rows.owners, np.arange(len(file_names) + 1)),
        dropped=rows.dropped,
    )


def _check_images(tables: CocoTables, source: Path) -> None:
    ids = Counter(image.image_id for image in tables.images)
    doubled = [image_id for image_id, count in ids.items() if count > 1]
    if doubled:
        raise UserError(f"{source}: image id {doubled[0]} is given to {ids[doubled[0]]} pictures; ids must be unique")
    ids_of_file: dict[str, list[int]] = {}
    for image in tables.images:
        ids_of_file.setdefault(image.file_name, []).append(image.image_id)
    shared = {file_name: sharing for file_name, sharing in ids_of_file.items() if len(sharing) > 1}
    if shared:
        named = listed(f"{file_name} under ids {sharing}" for file_name, sharing in shared.items())
        log.warning("%s: %d files stand under several image ids: %s", source, len(shared), named)


def _label_map_of_train(tables: CocoTables, used_ids: set[int], source: Path) -> LabelMap:
    if not tables.images:
        raise UserError(f"{source}: the train split has no pictures; there is nothing to learn from")
    if not used_ids:
        raise UserError(f"{source}: the train split has no usable box; there is nothing to learn from")
    unlisted = sorted(used_ids - set(tables.categories))
    if unlisted:
        raise UserError(f"{source}: boxes of category {unlisted[0]}, which is not in the file's category table; add it")
    return decide_label_map(tables.categories.values(), used_ids)


def _sizes_px(tables: CocoTables) -> np.ndarray:
    return np.array([image.size_px for image in tables.images], dtype=np.int64).reshape(-1, 2)


def _box_rows(tables: CocoTables, source: Path) -> _BoxRows:
    # 1. annotations under their pictures; those of no picture are orphans
    index_of_id = {image.image_id: index for index, image in enumerate(tables.images)}
    owned = [row for row in tables.annotations if row.image_id in index_of_id]
    _warn_of_orphans([row for row in tables.annotations if row.image_id not in index_of_id], source)
    owned.sort(key=lambda row: index_of_id[row.image_id])
    owners = np.array([index_of_id[row.image_id] for row in owned], dtype=np.int64)
    # 2. their boxes, clipped to the pictures; those with nothing left are degenerate
    raw = [_box(row, tables.images[owner], source) for row, owner in zip(owned, owners, strict=True)]
    boxes, clipped = clip_boxes(np.array(raw, dtype=np.float64).reshape(-1, 4), _sizes_px(tables)[owners])
    usable = np.asarray((boxes[:, 2:] > 0).all(axis=1))
    _warn_of_degenerate([row for row, ok in zip(owned, usable, strict=True) if not ok], len(owned), source)
    # 3. the annotated area belongs to the annotated box: a clipped box gets its own
    annotated = np.array([np.nan if row.area is None else row.area for row in owned], dtype=np.float64)
    areas = np.where(clipped | ~(annotated > 0), boxes[:, 2] * boxes[:, 3], annotated)
    return _BoxRows(
        owners=owners[usable],
        category_ids=np.array([row.category_id for row in owned], dtype=np.int64)[usable],
        boxes_xywh=boxes[usable],
        areas=areas[usable],
        crowd=np.array([row.crowd for row in owned], dtype=bool)[usable],
        dropped={
            "degenerate_boxes": int((~usable).sum()),
            "orphan_annotations": len(tables.annotations) - len(owned),
        },
    )


def _box(row: AnnotationRow, image: ImageRow, source: Path) -> list[float]:
    try:
        return annotated_box(row, image.size_px)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _warn_of_orphans(orphans: list[AnnotationRow], source: Path) -> None:
    if orphans:
        wanted = listed(dict.fromkeys(row.image_id for row in orphans))
        log.warning(
            "%s: %d dropped: annotations of image ids that are not in the file: %s", source, len(orphans), wanted
        )


def _warn_of_degenerate(rows: list[AnnotationRow], total: int, source: Path) -> None:
    if rows:
        ids = listed(row.annotation_id for row in rows)
        log.warning(
            "%s: %d dropped of %d boxes, with no area inside their picture: annotation ids %s",
            source,
            len(rows),
            total,
            ids,
        )
