"""What to predict on: a picture, a folder of them, a pattern, a video."""

import glob
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rfdetr_train.data.image_file import read_image
from rfdetr_train.data.reader import PICTURE_ENDINGS
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")


class Source(NamedTuple):
    """One picture, or one frame of a video."""

    name: str
    """Path below the folder that was given."""
    path: Path
    image: torch.Tensor
    """uint8 (3, height, width), RGB."""
    frame: int | None = None
    """Number of the frame of a video, from 0."""


def find_files(source: str) -> tuple[Path, list[Path]]:
    """The files that `source` names, and the folder that their names start from.

    A folder is searched through with its sub-folders, a pattern where it has **; other files are passed over.
    Raises UserError where nothing is found.
    """
    path = Path(source).expanduser().absolute()
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        root, files = path, sorted(p for p in path.rglob("*") if _is_readable(p))
    else:
        root = next(parent for parent in path.parents if parent.is_dir())  # brackets in its name are no pattern
        pattern = str(path.relative_to(root))
        files = sorted(
            p for name in glob.glob(pattern, root_dir=root, recursive=True) if _is_readable(p := root / name)
        )
    if not files:
        raise UserError(f"source={source}: no picture or video there; give a file, a folder or a quoted pattern")
    return root, files


def read_sources(root: Path, files: list[Path], max_megapixels: float) -> Iterator[Source | UserError]:
    """Every picture and every frame; for a file that cannot be read the reason in its place."""
    for path in files:
        try:
            if path.suffix.lower() in VIDEO_SUFFIXES:
                yield from _frames(root, path)
            else:
                yield Source(path.relative_to(root).as_posix(), path, read_image(path, max_megapixels))
        except UserError as error:
            yield error


def _is_readable(path: Path) -> bool:
    return path.suffix.lower() in (*PICTURE_ENDINGS, *VIDEO_SUFFIXES) and not path.is_dir()


def _frames(root: Path, path: Path) -> Iterator[Source]:
    av = import_av()
    name = path.relative_to(root).as_posix()
    try:
        with av.open(str(path)) as video:
            for number, frame in enumerate(video.decode(video=0)):
                image = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
                yield Source(name, path, image, number)
    except (av.error.FFmpegError, IndexError) as error:
        raise UserError(f"{path}: cannot be read as a video ({error})") from error


def import_av() -> Any:
    """PyAV; UserError where it is not installed."""
    try:
        import av
    except ImportError as error:
        raise UserError("reading videos needs PyAV: pip install 'rfdetr_train[video]'") from error
    return av
