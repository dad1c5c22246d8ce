"""A COCO JSON file as typed rows; every wrong type is refused with its place."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from rfdetr_train.data.categories import Category
from rfdetr_train.errors import UserError

_LARGEST_INTEGER = 2**62


class ImageRow(NamedTuple):
    """A row of the image table."""

    image_id: int
    file_name: str
    size_px: tuple[int, int]
    """(height, width)."""


class AnnotationRow(NamedTuple):
    """A row of the annotation table."""

    annotation_id: int
    """The file's own id; where it has none, the row's number from 1. Only for messages."""
    image_id: int
    category_id: int
    bbox: list[float] | None
    """xywh in pixels; None where only a segmentation is given."""
    segmentation: Any
    area: float | None
    crowd: bool


class CocoTables(NamedTuple):
    """The three tables of a file."""

    images: list[ImageRow]
    annotations: list[AnnotationRow]
    categories: dict[int, Category]


def read_tables(path: Path) -> CocoTables:
    """Read `path`.

    Raises: UserError with file and position for text that is no JSON, and with table and row for a wrong type.
    """
    content = _read_json(path)
    images = [_image(row, place) for row, place in _rows(content, "images", path)]
    annotations = [_annotation(row, place, n) for n, (row, place) in enumerate(_rows(content, "annotations", path), 1)]
    categories = [_category(row, place) for row, place in _rows(content, "categories", path)]
    return CocoTables(images, annotations, _by_id(categories, path))


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8 text; save the file as UTF-8") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply to be a COCO file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: a COCO file is an object with images, annotations and categories, not {_kind(content)}"
        )
    return content


def _rows(content: dict, table: str, path: Path) -> list[tuple[dict, str]]:
    rows, prefix = content.get(table), f"{path}: {table}"
    if not isinstance(rows, list):
        raise UserError(f"{prefix} must be a list, not {_kind(rows)}")
    placed = [(row, f"{prefix}[{i}]") for i, row in enumerate(rows)]
    for row, place in placed:
        if not isinstance(row, dict):
            raise UserError(f"{place} must be an object, not {_kind(row)}")
    return placed


def _image(row: dict, place: str) -> ImageRow:
    image_id = _integer(row, "id", place)
    file_name = row.get("file_name")
    if not isinstance(file_name, str) or not file_name:
        raise UserError(f"{place}.file_name must be a text, not {_kind(file_name)}")
    size_px = (_integer(row, "height", place), _integer(row, "width", place))
    if min(size_px) < 1:
        raise UserError(f"{place}: width x height is {size_px[1]}x{size_px[0]}; both must be at least 1")
    return ImageRow(image_id, file_name, size_px)


def _annotation(row: dict, place: str, number: int) -> AnnotationRow:
    annotation_id = _integer(row, "id", place) if row.get("id") is not None else number
    bbox, segmentation = row.get("bbox"), row.get("segmentation")
    if bbox in (None, []):
        if not segmentation:
            raise UserError(f"{place} (id {annotation_id}) has neither bbox nor segmentation")
        bbox = None
    elif not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_is_number, bbox)):
        raise UserError(
            f"{place}.bbox (id {annotation_id}) must be four finite numbers x, y, width, height, not {bbox!r}"
        )
    area = row.get("area")
    if area is not None and not _is_number(area):
        raise UserError(f"{place}.area (id {annotation_id}) must be a number, not {area!r}")
    crowd = row.get("iscrowd") or 0
    if crowd not in (0, 1):
        raise UserError(f"{place}.iscrowd (id {annotation_id}) must be 0 or 1, not {crowd!r}")
    ids = (_integer(row, "image_id", place), _integer(row, "category_id", place))
    return AnnotationRow(annotation_id, *ids, bbox, segmentation, area, bool(crowd))


def _category(row: dict, place: str) -> Category:
    name, supercategory = row.get("name"), row.get("supercategory")
    if not isinstance(name, str):
        raise UserError(f"{place}.name must be a text, not {_kind(name)}")
    if supercategory is not None and not isinstance(supercategory, str):
        raise UserError(f"{place}.supercategory must be a text, not {_kind(supercategory)}")
    return Category(_integer(row, "id", place), name, supercategory)


def _by_id(categories: list[Category], path: Path) -> dict[int, Category]:
    by_id: dict[int, Category] = {}
    for category in categories:
        if category.category_id in by_id:
            names = f"{by_id[category.category_id].name!r} and {category.name!r}"
            raise UserError(f"{path}: category id {category.category_id} is given twice, to {names}")
        by_id[category.category_id] = category
    return by_id


def _integer(row: dict, key: str, place: str) -> int:
    value: Any = row.get(key)
    if type(value) is int and -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER:  # nearly always; COCO has millions
        return value
    if not _is_number(value) or value != int(value) or abs(value) > _LARGEST_INTEGER:
        raise UserError(f"{place}.{key} must be a whole number of at most 64 bits, not {value!r}")
    return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _kind(value: Any) -> str:
    return "missing" if value is None else type(value).__name__
