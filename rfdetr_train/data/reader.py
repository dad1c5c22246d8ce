"""What the readers of all formats share: which files they may follow, and how they look at pictures.

A format is one file with one `Reader`. It tells what its files say and judges none of it: clipping, dropping and the
labels are the same for all formats and happen in `build_split.py`.
"""

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeGuard

import numpy as np

from rfdetr_train.data.image_file import Given, Progress, Result, attempted, image_size, in_threads
from rfdetr_train.data.raw_split import RawSplit
from rfdetr_train.errors import UserError, listed

log = logging.getLogger(__name__)

SPLIT_NAMES = {"train": ("train",), "valid": ("valid", "val", "validation"), "test": ("test",)}
"""What data sets call the splits, in folder and file names."""
PICTURE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
_UNREAD_ENDINGS = (".avif", ".heic", ".heif", ".jp2", ".jxl")
UNKNOWN_SIZE_PX = (2**20, 2**20)
"""Stands for the size of a picture that cannot be read; the check before training refuses it or leaves it out."""

_LARGEST_NUMBER = 1e12
_PROBED_PICTURES = 100  # some may be missing: the check of the pictures tells which


class Reader(ABC):
    """A data set of one format."""

    NAME: ClassVar[str]
    """In `data.format`."""
    LAYOUT: ClassVar[str]
    """What such a data set holds for `{split}`, for a message."""

    def __init__(self, root: Path, allow_outside_root: bool = False, progress: Progress | None = None) -> None:
        self.root, self._progress = root, progress
        self._allowed = "" if allow_outside_root else os.path.normpath(root) + os.sep

    @abstractmethod
    def sources(self, split: str) -> list[Path]:
        """What `split` (train, valid or test) could be read from: nothing, a file or folder, or several by mistake."""

    @abstractmethod
    def read(self, split: str, source: Path) -> RawSplit:
        """Read `split` from its source. Raises: UserError that names the place of whatever is wrong in the files."""

    def read_inside(self, split: str, source: Path) -> RawSplit:
        """As `read`; a picture that a link leads out of the root is refused, since an archive may bring links along."""
        raw = self.read(split, source)
        root, folders = os.path.join(os.path.realpath(self.root), ""), dict[str, bool]()
        for name in raw.file_names if self._allowed else ():
            path = os.path.join(raw.folder, name)
            folder = os.path.dirname(path)
            if folder not in folders:
                folders[folder] = os.path.join(os.path.realpath(folder), "").startswith(root)
            if not folders[folder] or (os.path.islink(path) and not os.path.realpath(path).startswith(root)):
                self.refuse_outside(os.path.realpath(path), Path(path))
        return raw

    def evidence(self) -> Path | None:
        """What makes the root look like this format."""
        return next((source for split in SPLIT_NAMES for source in self.sources(split)), None)

    def locate(self, folders: Sequence[Path], file_names: Sequence[str], source: Path) -> tuple[Path, list[str]]:
        """The first of `folders` that holds (some of) the pictures, else the first that exists; and the file names as
        this system writes them.

        An annotation file may come from anywhere: names that lead out of the root are refused. They are judged by
        themselves; `read_inside` judges links.

        Raises: UserError if none exists, or for such a name.
        """
        there = [folder for folder in folders if folder.is_dir()]
        if not there:
            raise UserError(f"{source}: no folder of pictures; looked for {', '.join(map(str, folders))}")
        probes = [_local(name) for name in file_names[:_PROBED_PICTURES] if "\0" not in name]
        holding = (folder for folder in there if any(os.path.exists(folder / name) for name in probes))
        folder = next(holding, there[0])
        names = [_local(name) if "\\" in name and not os.path.exists(folder / name) else name for name in file_names]
        for name in names:
            if "\0" in name or not self.allows(os.path.join(folder, name)):
                self.refuse_outside(name, source)
        return folder, names

    def allows(self, path: str | Path) -> bool:
        """Does `path` lie inside the root, or may it lie elsewhere?"""
        return (os.path.normpath(path) + os.sep).startswith(self._allowed)

    def refuse_outside(self, path: str | Path, source: Path) -> NoReturn:
        """Refuse a `path` that `source` names."""
        remedy = "correct it, or allow pictures elsewhere with data.allow_outside_root=true"
        raise UserError(f"{source}: {str(path)!r} leads out of {self.root}; {remedy}")

    def sizes_px(
        self, folder: Path, file_names: Sequence[str], told: Sequence[tuple[int, int]] | None = None
    ) -> np.ndarray:
        """int64 (n, 2): what the files tell, where it is above 0, and else as `sizes_of_pictures`."""
        sizes_px = np.array(told or [(0, 0)] * len(file_names), dtype=np.int64).reshape(-1, 2)
        unknown = np.flatnonzero((sizes_px <= 0).any(axis=1))
        sizes_px[unknown] = sizes_of_pictures([folder / file_names[int(i)] for i in unknown], self._progress)
        return sizes_px


def _local(name: str) -> str:
    """Windows tools write `images\\a.jpg`."""
    return name if os.sep == "\\" else name.replace("\\", "/")


def sizes_of_pictures(paths: Sequence[Path], progress: Progress | None = None) -> np.ndarray:
    """int64 (n, 2), (height, width) upright, from the headers; UNKNOWN_SIZE_PX where there is none."""
    found = in_threads(image_size, paths, progress)
    sizes_px = [UNKNOWN_SIZE_PX if isinstance(size_px, UserError) else size_px for size_px in found]
    return np.array(sizes_px, dtype=np.int64).reshape(-1, 2)


def files_below(folder: Path, endings: tuple[str, ...] = PICTURE_ENDINGS) -> Iterator[Path]:
    """The files with such endings in `folder` and its sub-folders, links followed.

    Hidden ones are left out: macOS writes a `._a.jpg` beside `a.jpg`.
    """
    seen = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a link to a folder above itself
            folders.clear()
        else:
            yield from (Path(parent, name) for name in files if name.lower().endswith(endings) and name[0] != ".")
        seen.add(real)


def pictures_below(folder: Path) -> list[Path]:
    """The pictures in `folder` and its sub-folders; the log tells of those in formats that are not read."""
    unread = sorted(files_below(folder, _UNREAD_ENDINGS))
    if unread:
        log.warning("%s: %d pictures left out, save them as JPEG or PNG: %s", folder, len(unread), listed(unread))
    return sorted(files_below(folder))


def any_case(folder: Path, path: str) -> Path:
    """`folder / path`, its parts in the capitals that they really have."""
    for part in Path(path).parts:
        if folder.is_dir() and not os.path.lexists(folder / part):
            part = min((name for name in os.listdir(folder) if name.lower() == part.lower()), default=part)
        folder /= part
    return folder


def read_text(path: Path) -> str:
    """A text file, with or without a byte-order mark. Raises: UserError that names it."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8 text; save the file as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a text file that are not empty, without blanks around them, and their numbers from 1."""
    lines = enumerate(read_text(path).splitlines(), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def is_text(value: Any) -> TypeGuard[str]:
    """A text that logs and files can take: JSON and YAML can also write half a character."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def number(text: str, what: str) -> float:
    """A finite number of a usual size. Raises: UserError that says `what` it should be."""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not abs(value) < _LARGEST_NUMBER:
        raise UserError(f"{what} must be a number, not {text!r}")
    return value


def parse_all(parse: Callable[[Given], Result], things: Iterable[Given]) -> list[Result]:
    """`parse` each. Raises: UserError with all that it refuses, so that its owner mends all of it at once."""
    parsed = attempted(parse, things)
    faults = [str(outcome) for outcome in parsed if isinstance(outcome, UserError)]
    if faults:
        raise UserError(listed(faults, separator="\n"))
    return [outcome for outcome in parsed if not isinstance(outcome, UserError)]
