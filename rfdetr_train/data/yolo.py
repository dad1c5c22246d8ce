"""YOLO data sets: a text file a picture, a line a box or polygon, in fractions of the picture."""

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from rfdetr_train.data.listing import listed
from rfdetr_train.data.raw_split import NamedBox, RawSplit, split_of_named_boxes
from rfdetr_train.data.reader import Reader, number, parse_all, pictures_below, read_text
from rfdetr_train.data.yolo_table import YoloTable, find_table, read_table
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

_SEPARATORS = re.escape("/" + os.sep)
_ROUNDING = 0.01  # how far beyond the picture a coordinate may lie; what lies farther is no fraction


class YoloReader(Reader):
    """The category ids are the class numbers."""

    LAYOUT = "data.yaml (or classes.txt) that names the classes and {split}, and folders of images and labels"

    @cached_property
    def _table(self) -> YoloTable | None:
        file = find_table(self.root)
        table = read_table(file, self.root) if file else None
        if table and not self.allows(table.folder):
            self.refuse_outside(table.folder, table.source)
        return table

    def evidence(self) -> Path | None:
        return find_table(self.root)

    def sources(self, split: str) -> list[Path]:
        table = self._table
        return [table.source] if table and any(self._locate(entry, table) for entry in table.entries[split]) else []

    def read(self, split: str, source: Path) -> RawSplit:
        table = self._table
        assert table is not None
        file_names = [name for entry in table.entries[split] for name in self._pictures(entry, table)]
        boxes = self._boxes(file_names, split, {c.category_id: c.name for c in table.categories})
        if all((path := self._locate(entry, table)) and path.is_dir() for entry in table.entries[split]):
            _warn_of_orphans(self.root, file_names, split)  # a list may take some pictures of a folder only
        sizes_px = self.sizes_px(self.root, file_names)
        return split_of_named_boxes(source, self.root, file_names, sizes_px, boxes, _to_xywh, table.categories)

    def _locate(self, entry: str, table: YoloTable) -> Path | None:
        """Where an entry lies; Roboflow writes `../train/images` and means `train/images`."""
        folders, inner = (table.folder, table.source.parent), re.sub(r"^(\.\.?/)+", "", entry)
        there = [folder / name for name in (entry, inner) for folder in folders if os.path.exists(folder / name)]
        allowed = [path for path in there if self.allows(path)]
        if there and not allowed:
            self.refuse_outside(there[0], table.source)
        return allowed[0] if allowed else None

    def _pictures(self, entry: str, table: YoloTable) -> list[str]:
        """The file names of an entry's pictures, from the root."""
        path = self._locate(entry, table)
        if path is None:
            raise UserError(f"{table.source}: {table.folder / entry} does not exist")
        if path.is_dir():
            pictures = pictures_below(path)
        else:
            names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
            folder = self.picture_folder([path.parent, table.folder], names, path)
            pictures = [folder / name for name in self.inside_root(folder, names, path)]
            if pictures and not any(map(os.path.exists, pictures)):
                raise UserError(f"{path}:1: {pictures[0]} does not exist, nor do the others; correct the paths")
        return [str(picture).removeprefix(f"{self.root}{os.sep}") for picture in pictures]

    def _boxes(self, file_names: list[str], split: str, names: Mapping[int, str]) -> list[list[NamedBox]]:
        """The boxes of each picture."""
        files = [_label_file(self.root, name) for name in file_names]
        missing = files.count(None)
        if missing:
            example = _label_paths(self.root, file_names[files.index(None)])[0]
            level = logging.WARNING if missing == len(files) else logging.INFO
            message = "%s: %d of %d pictures have no label file (no %s), so no boxes"
            log.log(level, message, split, missing, len(files), example)
        shared = [file for file, count in Counter(files).items() if file and count > 1]
        if shared:
            log.warning("%s: %d label files are of several pictures each: %s", split, len(shared), listed(shared))
        return parse_all(lambda file: read_labels(file, names) if file else [], files)


def _label_paths(root: Path, file_name: str) -> list[Path]:
    """Where YOLO looks: the last folder `images` of the path replaced by `labels`, else beside the picture."""
    beside = os.path.splitext(file_name)[0] + ".txt"
    replaced = re.sub(rf"^(.*[{_SEPARATORS}])?images([{_SEPARATORS}])", r"\1labels\2", beside)  # greedy: the last one
    return [root / replaced, root / beside]


def _warn_of_orphans(root: Path, file_names: list[str], split: str) -> None:
    used = {path for name in file_names for path in _label_paths(root, name)}
    texts = {
        file for folder in {path.parent for path in used} for file in folder.glob("*.txt") if file.is_file()
    } - used
    orphans = [file for file in sorted(texts) if re.match(rb"\d+\s+[\d.]", file.read_bytes())]
    if orphans:
        log.warning("%s: %d label files are of no picture: %s", split, len(orphans), listed(orphans))


def _label_file(root: Path, file_name: str) -> Path | None:
    return next((path for path in _label_paths(root, file_name) if os.path.isfile(path)), None)


def read_labels(file: Path, names: Mapping[int, str]) -> list[NamedBox]:
    """The boxes of a label file: `class cx cy w h`, or `class x y x y x y ...` for a polygon; numbers are cxcywh.

    Raises: UserError with file and line.
    """
    lines = enumerate(read_text(file).splitlines(), start=1)
    return [_label_line(file, n, line.split(), names) for n, line in lines if line.strip()]


def _label_line(file: Path, line: int, fields: list[str], names: Mapping[int, str]) -> NamedBox:
    place = f"{file}:{line}"
    class_number, *coordinates = [number(field, f"{place}: each field") for field in fields]
    if class_number not in names:
        raise UserError(f"{place}: class {fields[0]} is none of the {len(names)} classes, {listed(sorted(names))}")
    if len(fields) != 5 and (len(fields) < 7 or len(fields) % 2 == 0):
        raise UserError(
            f"{place}: {len(fields)} fields; a box has 5, class cx cy width height, a polygon an odd number from 7"
        )
    wrong = [value for value in coordinates if not -_ROUNDING <= value <= 1 + _ROUNDING]
    if wrong:
        raise UserError(f"{place}: {wrong[0]:g} is no fraction of the picture; divide pixels by its width and height")
    numbers = coordinates if len(fields) == 5 else _around(coordinates[0::2], coordinates[1::2])
    return NamedBox((file, line), names[int(class_number)], tuple(numbers))


def _around(xs: list[float], ys: list[float]) -> list[float]:
    """cxcywh of the box around points."""
    return [(min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2, max(xs) - min(xs), max(ys) - min(ys)]


def _to_xywh(cxcywh: np.ndarray, sizes_px: np.ndarray) -> np.ndarray:
    """Fractions -> pixels."""
    centres, sizes = cxcywh[:, :2], cxcywh[:, 2:]
    return np.concatenate([centres - sizes / 2, sizes], axis=1) * np.tile(sizes_px[:, ::-1], (1, 2))
