"""CSV data sets: a line a box, `image,x1,y1,x2,y2,class`, or columns of usual names in any order."""

import csv
import io
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from rfdetr_train.data.raw_split import NamedBox, RawSplit, split_of_named_boxes
from rfdetr_train.data.reader import SPLIT_NAMES, Reader, any_case, number, parse_all, read_text
from rfdetr_train.errors import UserError

_CORNERS = ("x1", "y1", "x2", "y2")
_COLUMNS = {
    "image": ("image", "filename", "file_name", "file", "path", "image_path", "image_name", "img"),
    "x1": ("x1", "xmin", "x_min", "left"),
    "y1": ("y1", "ymin", "y_min", "top"),
    "x2": ("x2", "xmax", "x_max", "right"),
    "y2": ("y2", "ymax", "y_max", "bottom"),
    "class": ("class", "label", "name", "class_name", "category"),
    "split": ("split", "set", "subset"),
    "width": ("width", "image_width", "img_width"),
    "height": ("height", "image_height", "img_height"),
    "difficult": ("difficult",),
}
"""The columns, and what headers call them."""
_WITHOUT_HEADER = ("image", *_CORNERS, "class", "split")
_NEEDED = {"image", *_CORNERS, "class"}
_COMMON_FILES = ("annotations.csv", "_annotations.csv", "labels.csv")
_SPLIT_OF_WORD = {"train": "train", "training": "train", "valid": "valid", "val": "valid", "validation": "valid",
                  "validate": "valid", "test": "test"}  # fmt: skip


class CsvLine(NamedTuple):
    """A line: a box, or a picture without one."""

    image: str
    split: str
    boxes: list[NamedBox]
    """One or none; the numbers are x1, y1, x2, y2 in pixels."""
    size_px: tuple[int, int]
    """(height, width) that the corners are of; 0 where it is not told."""


class CsvReader(Reader):
    """A file for each split, or one for all; without a column `split`, that one is train."""

    NAME = "csv"
    LAYOUT = "{split}.csv, {split}/_annotations.csv, or annotations.csv with {split} in a column split"

    def sources(self, split: str) -> list[Path]:
        common = self._common_lines.items
        return self._own_files(split) or [file for file, lines in common() if any(n.split == split for n in lines)]

    def evidence(self) -> Path | None:
        return next((file for split in SPLIT_NAMES for file in self._own_files(split) + self._common_files()), None)

    def _own_files(self, split: str) -> list[Path]:
        forms = ("{}.csv", "{}/_annotations.csv")
        files = [any_case(self.root, form.format(n)) for n in SPLIT_NAMES[split] for form in forms]
        return [file for file in files if file.is_file()]

    def _common_files(self) -> list[Path]:
        return [file for name in _COMMON_FILES if (file := self.root / name).is_file()]

    @cached_property
    def _common_lines(self) -> dict[Path, list[CsvLine]]:
        return {file: read_lines(file) for file in self._common_files()}

    def read(self, split: str, source: Path) -> RawSplit:
        own = source in self._own_files(split)
        lines = read_lines(source) if own else [n for n in self._common_lines[source] if n.split == split]
        boxes: dict[str, list[NamedBox]] = {}
        told: dict[str, tuple[int, int]] = {}
        for line in lines:
            name = os.path.normpath(line.image)  # ./a.jpg is a.jpg
            boxes.setdefault(name, []).extend(line.boxes)
            if told.setdefault(name, line.size_px) != line.size_px:
                raise UserError(f"{source}: {name} has lines of different width or height; correct them")
        if 0 < max((c for of_picture in boxes.values() for box in of_picture for c in box.numbers), default=0) <= 1:
            raise UserError(f"{source}: no corner lies beyond 1, so these are fractions; give pixels")
        names = sorted(boxes)
        tops = [any_case(self.root / top, name) for name in SPLIT_NAMES[split] for top in ("", "images")]
        folder, file_names = self.locate([source.parent, *tops, source.parent / "images"], names, source)
        sizes_px = self.sizes_px(folder, file_names, [told[name] for name in names])
        return split_of_named_boxes(source, folder, file_names, sizes_px, [boxes[name] for name in names])


def read_lines(file: Path) -> list[CsvLine]:
    """Read a CSV file, its fields parted by commas, semicolons or tabs.

    Raises: UserError with the lines of what is wrong.
    """
    rows = list(_rows(file))
    if not rows:
        return []
    first = [cell.lower() for cell in rows[0][1]]
    named = {column: first.index(name) for column, names in _COLUMNS.items() for name in names[::-1] if name in first}
    if "image" not in named:  # no header
        num_columns = min(max(len(first), len(_NEEDED)), len(_WITHOUT_HEADER))
        columns = {column: position for position, column in enumerate(_WITHOUT_HEADER[:num_columns])}
    elif set(named) >= _NEEDED:
        columns, rows, num_columns = named, rows[1:], len(first)
    else:
        raise UserError(f"{file}:{rows[0][0]}: the header must name image, x1, y1, x2, y2 and class, not {rows[0][1]}")
    return parse_all(lambda row: _line(file, *row, columns, num_columns), rows)


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row that is not empty."""
    text = read_text(file)
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise UserError(f"{file}:{reader.line_num}: not valid CSV: {error}") from error


def _line(file: Path, line: int, cells: list[str], columns: dict[str, int], num_columns: int) -> CsvLine:
    place = f"{file}:{line}"
    if any(cells[num_columns:]):
        raise UserError(f"{place}: {len(cells)} cells for {num_columns} columns; put a text with a comma in quotes")
    row = {column: cells[position] for column, position in columns.items() if position < len(cells)}
    if not row.get("image") or not set(row) >= _NEEDED:
        raise UserError(f"{place}: must have image, x1, y1, x2, y2 and class; a picture without boxes has them empty")
    word = row.get("split", "") if "split" in columns else "train"
    split = _SPLIT_OF_WORD.get(word.lower())
    if split is None:
        raise UserError(f"{place}: split {word!r} is none of {', '.join(_SPLIT_OF_WORD)}")
    height, width = (int(number(row.get(side) or "0", f"{place}: {side}")) for side in ("height", "width"))
    if not any(row[column] for column in (*_CORNERS, "class")):
        return CsvLine(row["image"], split, [], (height, width))
    if not row["class"]:
        raise UserError(f"{place}: the box has no class")
    corners = tuple(number(row[column], f"{place}: {column}") for column in _CORNERS)
    difficult = number(row.get("difficult") or "0", f"{place}: difficult") != 0
    return CsvLine(row["image"], split, [NamedBox((file, line), row["class"], corners, difficult)], (height, width))
