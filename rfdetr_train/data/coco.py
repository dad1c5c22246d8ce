"""COCO data sets: Roboflow's layout, with a file in each split's folder, and the plain one."""

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NamedTuple

import numpy as np

from rfdetr_train.data.coco_boxes import box_of_segmentation
from rfdetr_train.data.image_file import Result
from rfdetr_train.data.raw_split import Category, RawSplit
from rfdetr_train.data.reader import SPLIT_NAMES, UNKNOWN_SIZE_PX, Reader, any_case, is_text, read_text
from rfdetr_train.errors import UserError, listed

ROBOFLOW_FILE = "_annotations.coco.json"
_PLAIN_NAMES = {**SPLIT_NAMES, "train": ("train", "default", "result")}  # as CVAT and Label Studio call their only one
_LARGEST_INTEGER = 2**63 - 1
_LARGEST_NUMBER = 1e300  # so that no sum of two overflows


class Annotation(NamedTuple):
    """A row of the annotation table as it stands in the file, in a third of a dict's memory."""

    id: Any
    image_id: Any
    category_id: Any
    bbox: Any
    area: Any
    iscrowd: Any
    segmentation: Any

    @classmethod
    def of(cls, row: dict) -> "Annotation":
        """The row; where a bbox is given, a segmentation (ten times as large) is of no use here."""
        get, bbox = row.get, row.get("bbox")
        segmentation = None if bbox else get("segmentation")
        return cls(get("id"), get("image_id"), get("category_id"), bbox, get("area"), get("iscrowd"), segmentation)

    def get(self, key: str) -> Any:
        """As of the dict that it was."""
        return getattr(self, key)


class Table(NamedTuple):
    """The rows of one table: dicts, or `Annotation`s."""

    place: str
    rows: list[Any]

    def column(self, value_of: Callable[[Any], Result]) -> list[Result]:
        """A value of each row; a refusal gets the row's place in front."""
        values: list[Result] = []
        try:
            values.extend(map(value_of, self.rows))
        except UserError as error:
            raise UserError(f"{self.place}[{len(values)}]{error}") from error
        return values

    def integers(self, key: str) -> np.ndarray:
        """int64 (rows,)."""
        return np.array(self.column(lambda row: _integer(row.get(key), key)), dtype=np.int64)


class CocoReader(Reader):
    """The ids of pictures and categories are the file's own, and decide."""

    NAME = "coco"
    LAYOUT = f"{{split}}/{ROBOFLOW_FILE}, annotations/{{split}}.json or annotations/instances_{{split}}2017.json"

    def sources(self, split: str) -> list[Path]:
        folders = [any_case(self.root, name) for name in SPLIT_NAMES[split]]
        roboflow = [folder / ROBOFLOW_FILE for folder in folders if (folder / ROBOFLOW_FILE).is_file()]
        files = [*sorted((self.root / "annotations").glob("*.json")), *sorted(self.root.glob("*.json"))]
        return roboflow or [file for file in files if _plain_stem(file, split)]

    def read(self, split: str, source: Path) -> RawSplit:
        images, annotations, categories = read_tables(source)
        stem = _plain_stem(source, split)
        names = dict.fromkeys((stem, *SPLIT_NAMES[split]))  # in order, each once
        plain = [any_case(self.root / top, name) for name in names for top in ("", "images")]
        plain += [self.root / "images", self.root]
        folders = plain if stem else [source.parent]
        folder, file_names = self.locate(folders, images.column(file_name_of), source)
        sizes_px = self.sizes_px(folder, file_names, images.column(size_px_of))
        image_ids, annotation_ids = images.integers("id"), annotations.integers("id")
        size_of_id = dict(zip(image_ids.tolist(), map(tuple, sizes_px.tolist()), strict=True))
        return RawSplit(
            source=source,
            folder=folder,
            file_names=file_names,
            image_ids=image_ids,
            sizes_px=sizes_px,
            categories=categories,
            names_decide=False,
            box_image_ids=annotations.integers("image_id"),
            category_ids=annotations.integers("category_id"),
            boxes_xywh=_boxes(annotations, size_of_id, source),
            areas=np.array(annotations.column(area_of), dtype=np.float64),
            crowd=np.array(annotations.column(is_crowd), dtype=bool),
            describe=lambda rows: "annotation ids " + listed(annotation_ids[list(rows)]),
            box_ids=annotation_ids,
        )


def _plain_stem(file: Path, split: str) -> str:
    """`train2017` of instances_train2017.json; COCO's own captions_ and person_keypoints_ files are not meant."""
    match = re.fullmatch(
        rf"(instances_)?(?P<stem>({'|'.join(_PLAIN_NAMES[split])})(\d{{4}})?)\.json", file.name, re.IGNORECASE
    )
    return match["stem"] if match else ""


def _boxes(annotations: Table, size_of_id: dict[int, tuple[int, int]], source: Path) -> np.ndarray:
    """Their boxes, those around segmentations where no bbox is given."""
    boxes = np.array(annotations.column(box_xywh_of), dtype=np.float64).reshape(-1, 4)
    for number in np.flatnonzero(np.isnan(boxes[:, 0])):
        row = annotations.rows[number]
        size_px = size_of_id.get(row.image_id)
        try:
            boxes[number] = box_of_segmentation(row.segmentation, size_px if size_px != UNKNOWN_SIZE_PX else None)
        except UserError as error:
            raise UserError(f"{source}: annotation {row.id}: {error}") from error
    return boxes


def read_tables(path: Path) -> tuple[Table, Table, list[Category]]:
    """The images, the annotations and the categories of a file.

    Raises: UserError with file and position for text that is no JSON, and with table and row for a wrong type.
    """
    content = _read_json(path)
    images, annotations = _table(content, "images", path), _table(content, "annotations", path)
    rows = [Annotation.of(row) if isinstance(row, dict) else row for row in annotations.rows]
    annotations.rows[:] = [row._replace(id=n) if row.id is None else row for n, row in enumerate(rows, start=1)]
    categories = _table(content, "categories", path).column(_category)
    by_id: dict[int, Category] = {}
    for category in categories:
        first = by_id.setdefault(category.category_id, category)
        if first is not category:
            names = f"{first.name!r} and {category.name!r}"
            raise UserError(f"{path}: category id {category.category_id} is given twice, to {names}")
    return images, annotations, categories


def _read_json(path: Path) -> dict:
    text = read_text(path)
    try:
        content = json.loads(text, object_hook=_slim)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply to be a COCO file") from error
    except ValueError as error:  # a number of more digits than Python converts
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        wanted = "an object with images, annotations and categories"
        raise UserError(f"{path}: a COCO file is {wanted}, not {_kind(content)}")
    return content


def _slim(row: dict) -> Any:
    """Called for each object while the file is parsed, so that its segmentations never are in memory together."""
    return Annotation.of(row) if "image_id" in row and "category_id" in row and "file_name" not in row else row


def _table(content: dict, name: str, path: Path) -> Table:
    rows = content.get(name)
    if not isinstance(rows, list):
        raise UserError(f"{path}: {name} must be a list, not {_kind(rows)}")
    kinds = (dict, Annotation) if name == "annotations" else dict
    for number, row in enumerate(rows):
        if not isinstance(row, kinds):
            raise UserError(f"{path}: {name}[{number}] must be an object, not {_kind(row)}")
    return Table(f"{path}: {name}", rows)


def file_name_of(row: dict) -> str:
    """An image's file name."""
    if not row.get("file_name"):
        raise UserError(f".file_name must be a text, not {_kind(row.get('file_name'))}")
    return _text(row, "file_name")


def size_px_of(row: dict) -> tuple[int, int]:
    """An image's (height, width); 0 where the file does not give both."""
    if row.get("height") is None or row.get("width") is None:
        return 0, 0
    height, width = _integer(row["height"], "height"), _integer(row["width"], "width")
    if min(height, width) < 1:
        raise UserError(f": width x height is {width}x{height}; both must be at least 1")
    return height, width


def box_xywh_of(row: Annotation) -> Sequence[float]:
    """An annotation's bbox, or NaNs where it has a segmentation only."""
    bbox = row.bbox
    if type(bbox) is list and len(bbox) == 4 and all(map(_is_number, bbox)):
        return bbox
    if bbox not in (None, []):
        raise UserError(f".bbox (id {row.id}) must be four finite numbers x, y, width, height, not {shown(bbox)}")
    if not row.segmentation:
        raise UserError(f" (id {row.id}) has neither bbox nor segmentation")
    return [math.nan] * 4


def area_of(row: Annotation) -> float:
    """An annotation's area, or NaN where it has none."""
    if row.area is not None and not _is_number(row.area):
        raise UserError(f".area (id {row.id}) must be a number, not {shown(row.area)}")
    return math.nan if row.area is None else row.area


def is_crowd(row: Annotation) -> bool:
    """Is the annotation a region of many objects?"""
    crowd = row.iscrowd or 0
    if crowd not in (0, 1):
        raise UserError(f".iscrowd (id {row.id}) must be 0 or 1, not {shown(crowd)}")
    return bool(crowd)


def _category(row: dict) -> Category:
    group = None if row.get("supercategory") is None else _text(row, "supercategory")
    return Category(_integer(row.get("id"), "id"), _text(row, "name"), group)


def _text(row: dict, key: str) -> str:
    value = row.get(key)
    if not is_text(value):
        raise UserError(f".{key} must be a text, not {shown(value) if isinstance(value, str) else _kind(value)}")
    return value


def _integer(value: Any, key: str) -> int:
    if type(value) is int and -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER:  # nearly always; COCO has millions
        return value
    if not _is_number(value) or value != int(value) or abs(value) >= _LARGEST_INTEGER:
        remedy = "; results name it by this number" if isinstance(value, str) else ""
        raise UserError(f".{key} must be a whole number of at most 64 bits, not {shown(value)}{remedy}")
    return int(value)


def _is_number(value: Any) -> bool:
    """A finite number of a usual size."""
    return type(value) in (int, float) and -_LARGEST_NUMBER < value < _LARGEST_NUMBER


def _kind(value: Any) -> str:
    return "missing" if value is None else type(value).__name__
