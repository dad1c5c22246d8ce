"""Writing a file so that its readers meet the old one or the new one, never a part, whatever happens meanwhile."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends without an error.

    The bytes are on the disk before the name changes, and the change itself before this returns. After an error the
    old file is as it was and nothing is left beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        put_in_place(Path(temporary), path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a private file that is on the disk the name `path`, as readable as its neighbours."""
    os.chmod(temporary, 0o666 & ~_umask())
    os.replace(temporary, path)
    _flush_folder(path.parent)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":  # Windows has no such call
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
