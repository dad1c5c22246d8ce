"""A YOLO data set's `data.yaml`: its classes, and where the pictures of each split lie."""

import logging
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rfdetr_train.data.categories import Category
from rfdetr_train.data.reader import SPLIT_NAMES, any_case, is_text, read_text
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

_USUAL_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_USUAL_FOLDERS = ("{}/images", "images/{}", "{}")


class YoloTable(NamedTuple):
    """What `data.yaml` says, or where there is none, `classes.txt` and the usual folders."""

    source: Path
    categories: list[Category]
    """The ids are the class numbers of the label files."""
    folder: Path
    """What relative paths start from, unless it is the folder of `source`."""
    entries: dict[str, list[str]]
    """Split -> folders of pictures, and text files that list pictures."""


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
        names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
        return YoloTable(path, [Category(*pair) for pair in enumerate(names)], root, _usual_entries(root))
    content = _read_yaml(path)
    if "kpt_shape" in content:
        raise UserError(f"{path}: kpt_shape: lines with key points are not read; export the data set for detection")
    folder = path.parent / _text(content.get("path") or ".", "path", path)
    if not os.path.isdir(folder):
        log.warning("%s: path: %s does not exist; its splits are looked for in %s", path, folder, path.parent)
        folder = path.parent
    return YoloTable(path, _categories(content, path), folder, _entries(content, path))


def _usual_entries(root: Path) -> dict[str, list[str]]:
    layouts = {s: [form.format(n) for n in names for form in _USUAL_FOLDERS] for s, names in SPLIT_NAMES.items()}
    spelt = {s: [os.path.relpath(any_case(root, name), root) for name in names] for s, names in layouts.items()}
    found = {split: [name for name in names if (root / name).is_dir()][:1] for split, names in spelt.items()}
    return found if any(found.values()) else {**found, "train": ["images" if (root / "images").is_dir() else "."]}


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
    if not any(content.get(name) for names in SPLIT_NAMES.values() for name in names):
        return _usual_entries(path.parent)
    given = {split: [content[n] for n in names if content.get(n)] for split, names in SPLIT_NAMES.items()}
    return {split: _texts(values[0], split, path) if values else [] for split, values in given.items()}


def _texts(value: Any, key: str, path: Path) -> list[str]:
    return [_text(entry, key, path) for entry in (value if isinstance(value, list) else [value])]


def _text(value: Any, key: str, path: Path) -> str:
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
