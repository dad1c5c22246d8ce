"""YOLO data sets: `data.yaml`, and a text file a picture, a line a box or polygon, in fractions of the picture."""

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from rfdetr_train.data.raw_split import Category, NamedBox, RawSplit, split_of_named_boxes
from rfdetr_train.data.reader import (
    SPLIT_NAMES,
    Reader,
    any_case,
    is_text,
    number,
    numbered_lines,
    parse_all,
    pictures_below,
    read_text,
)
from rfdetr_train.errors import UserError, listed

log = logging.getLogger(__name__)

_USUAL_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_USUAL_FOLDERS = ("{}/images", "images/{}", "{}")
_SEPARATORS = re.escape("/" + os.sep)
_ROUNDING = 0.01  # how far beyond the picture a coordinate may lie; what lies farther is no fraction


class YoloTable(NamedTuple):
    """What `data.yaml` says, or where there is none, `classes.txt` and the usual folders."""

    source: Path
    categories: list[Category]
    """The ids are the class numbers of the label files."""
    folder: Path
    """What relative paths start from, unless it is the folder of `source`."""
    entries: dict[str, list[str]]
    """Split -> folders of pictures, and text files that list pictures."""


class YoloReader(Reader):
    """The category ids are the class numbers."""

    NAME = "yolo"
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
            listing = [line for _, line in numbered_lines(path)]
            folder, names = self.locate([path.parent, table.folder], listing, path)
            pictures = [folder / name for name in names]
            if pictures and not any(map(os.path.exists, pictures)):
                raise UserError(f"{path}:1: {pictures[0]} does not exist, nor do the others; correct the paths")
        return [str(picture).removeprefix(f"{self.root}{os.sep}") for picture in pictures]

    def _boxes(self, file_names: list[str], split: str, names: Mapping[int, str]) -> list[list[NamedBox]]:
        """The boxes of each picture."""
        places = [_label_paths(self.root, name) for name in file_names]
        files = [next(filter(os.path.isfile, paths), None) for paths in places]
        missing = files.count(None)
        if missing:
            level = logging.WARNING if missing == len(files) else logging.INFO
            message = "%s: %d of %d pictures have no label file (no %s), so no boxes"
            log.log(level, message, split, missing, len(files), places[files.index(None)][0])
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
    texts = {file for folder in {path.parent for path in used} for file in folder.glob("*.txt") if file.is_file()}
    orphans = [file for file in sorted(texts - used) if re.match(rb"\d+\s+[\d.]", file.read_bytes())]
    if orphans:
        log.warning("%s: %d label files are of no picture: %s", split, len(orphans), listed(orphans))


def read_labels(file: Path, names: Mapping[int, str]) -> list[NamedBox]:
    """The boxes of a label file: `class cx cy w h`, or `class x y x y x y ...` for a polygon; numbers are cxcywh.

    Raises: UserError with file and line.
    """
    return [_label_line(file, n, line.split(), names) for n, line in numbered_lines(file)]


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
    if len(fields) > 5:
        xs, ys = coordinates[0::2], coordinates[1::2]
        coordinates = [(min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2, max(xs) - min(xs), max(ys) - min(ys)]
    return NamedBox((file, line), names[int(class_number)], tuple(coordinates))


def _to_xywh(cxcywh: np.ndarray, sizes_px: np.ndarray) -> np.ndarray:
    """Fractions -> pixels."""
    centres, sizes = cxcywh[:, :2], cxcywh[:, 2:]
    return np.concatenate([centres - sizes / 2, sizes], axis=1) * np.tile(sizes_px[:, ::-1], (1, 2))


def find_table(root: Path) -> Path | None:
    """A `data.yaml`, else the only YAML file with `names`, else `classes.txt`, there or in the folders of the splits.

    Raises: UserError if several could be meant.
    """
    usual = [root / name for name in _USUAL_NAMES if (root / name).is_file()]
    if usual:
        return usual[0]
    others = sorted(path for path in (*root.glob("*.yaml"), *root.glob("*.yml")) if path.is_file())
    others = [path for path in others if re.search(rb"^names\s*:", path.read_bytes(), re.MULTILINE)]
    if len(others) > 1:
        named = " and ".join(path.name for path in others)
        raise UserError(f"data.root={root}: {named} could all describe the data set; call the right one data.yaml")
    folders = [root, *(any_case(root, name) for names in SPLIT_NAMES.values() for name in names)]  # LabelImg's: each
    classes = [file for folder in folders if (file := folder / "classes.txt").is_file()]
    if not others and len({read_text(file).strip() for file in classes}) > 1:
        raise UserError(f"data.root={root}: {' and '.join(map(str, classes))} differ; give all splits the same classes")
    return next(iter(others + classes), None)


def read_table(path: Path, root: Path) -> YoloTable:
    """Read `path`, found in the data set at `root`. Raises: UserError that names it."""
    if path.suffix == ".txt":
        names = [line for _, line in numbered_lines(path)]
        return YoloTable(path, [Category(*pair) for pair in enumerate(names)], root, _usual_entries(root))
    content = _read_yaml(path)
    if "kpt_shape" in content:
        raise UserError(f"{path}: kpt_shape: lines with key points are not read; export the data set for detection")
    folder = path.parent / _path(content.get("path") or ".", "path", path)
    if not os.path.isdir(folder):
        log.warning("%s: path: %s does not exist; its splits are looked for in %s", path, folder, path.parent)
        folder = path.parent
    return YoloTable(path, _categories(content, path), folder, _entries(content, path))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:  # the base loader knows texts, lists and mappings only: a class called `no` stays one
        content = yaml.load(read_text(path), Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise UserError(f"{place}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold `key: value` lines (names, train, val)")
    return {key: value for key, value in content.items() if value not in ("", "~", "null")}


def _entries(content: dict[str, Any], path: Path) -> dict[str, list[str]]:
    given: dict[str, Any] = {
        split: next((content[name] for name in names if content.get(name)), []) for split, names in SPLIT_NAMES.items()
    }
    if not any(given.values()):
        return _usual_entries(path.parent)
    lists = {split: value if isinstance(value, list) else [value] for split, value in given.items()}
    return {split: [_path(entry, split, path) for entry in entries] for split, entries in lists.items()}


def _usual_entries(root: Path) -> dict[str, list[str]]:
    layouts = {s: [form.format(n) for n in names for form in _USUAL_FOLDERS] for s, names in SPLIT_NAMES.items()}
    spelt = {s: [os.path.relpath(any_case(root, name), root) for name in names] for s, names in layouts.items()}
    found = {split: [name for name in names if (root / name).is_dir()][:1] for split, names in spelt.items()}
    return found if any(found.values()) else {**found, "train": ["images" if (root / "images").is_dir() else "."]}


def _path(value: Any, key: str, path: Path) -> str:
    if not is_text(value) or "\0" in value:
        raise UserError(f"{path}: {key} must be a path or a list of paths")
    return value.replace("\\", "/")


def _categories(content: dict[str, Any], path: Path) -> list[Category]:
    names = content.get("names")
    pairs = list(names.items() if isinstance(names, dict) else enumerate(names) if isinstance(names, list) else [])
    if not pairs or not all(is_text(name) for _, name in pairs):
        raise UserError(f"{path}: names must list the classes, [cat, dog] or {{0: cat, 1: dog}}")
    try:
        name_of_number = {int(number): name for number, name in pairs}
        count = float(content.get("nc") or len(pairs))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: nc and the numbers of names must be whole numbers: {error}") from error
    if count != len(pairs):
        raise UserError(f"{path}: nc: {content['nc']}, but names has {len(pairs)}; correct one of them")
    if len(name_of_number) < len(pairs) or not 0 <= min(name_of_number) <= max(name_of_number) < 2**31:
        raise UserError(f"{path}: the numbers of names must be different and from 0 to 2^31 - 1")
    return [Category(*pair) for pair in sorted(name_of_number.items())]
