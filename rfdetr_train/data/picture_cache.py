"""The decoded pictures of a split in one file that every worker maps: in memory (data.cache=ram) or on disk.

The file holds a table, int64 (N, 3) of offset, height and width, and behind it the bytes of the N pictures. It is
written once, before the first step, and only read afterwards.
"""

import hashlib
import logging
import mmap
import os
import shutil
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from multiprocessing import reduction as descriptors
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
import torch

from rfdetr_train import distributed
from rfdetr_train.atomic_file import replacing
from rfdetr_train.data.image_file import Progress, reduction
from rfdetr_train.data.sample import Split
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

_LAYOUT = 1  # to be raised when the file's layout changes, or what `read_image` makes of a picture
_MOST = 0.8  # of what is free may be taken
_CONTROL_GROUP = Path("/sys/fs/cgroup")  # where a container finds its own limits


class PictureCache:
    """Gives the tensors that `Split.read_image` gives. A picture whose file has changed is decoded from it again."""

    def __init__(self, split: Split, at_least_px: int | None, stamps: np.ndarray, descriptor: int) -> None:
        """`descriptor`: of the file, closed with this object."""
        self._split, self._at_least_px, self._stamps, self._descriptor = split, at_least_px, stamps, descriptor
        weakref.finalize(self, os.close, descriptor)

    def read_image(self, index: int) -> torch.Tensor:
        """Picture `index`: uint8 (3, height, width), channels last in memory, to be left as it is.

        Raises: UserError if its file has gone or broken.
        """
        if tuple(self._stamps[index]) != _stamp(self._split.path(index)):
            return self._split.read_image(index, self._at_least_px)
        offset, height, width = (int(value) for value in self._table[index])
        pixels = self._bytes[offset : offset + height * width * 3].reshape(height, width, 3)
        return torch.from_numpy(pixels).permute(2, 0, 1)

    @cached_property
    def _bytes(self) -> np.ndarray:
        """The file, mapped by each process for itself; private, since torch takes no arrays that are read-only."""
        return np.frombuffer(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_COPY), np.uint8)

    @cached_property
    def _table(self) -> np.ndarray:
        return self._bytes[: len(self._split) * 24].view(np.int64).reshape(-1, 3)

    def __reduce__(self) -> tuple:
        """For a worker that is being started, which gets a descriptor of its own."""
        return _unpickled, (self._split, self._at_least_px, self._stamps, descriptors.DupFd(self._descriptor))


def _unpickled(split: Split, at_least_px: int | None, stamps: np.ndarray, descriptor: Any) -> PictureCache:
    return PictureCache(split, at_least_px, stamps, descriptor.detach())


def open_cache(split: Split, at_least_px: int | None, kind: str, folder: Path, progress: Progress) -> PictureCache:
    """Decode all pictures of `split`, as `Split.read_image` does, into memory (kind="ram") or into `folder` ("disk").

    On disk the file of an earlier run is taken if no picture has changed since.

    Raises: UserError where they do not fit, and for a picture that cannot be read.
    """
    if sys.platform == "win32" or (kind == "ram" and not hasattr(os, "memfd_create")):
        raise UserError(f"data.cache={kind}: not available on {sys.platform}; use data.cache=none")
    stamps = np.array([_stamp(split.path(index)) for index in range(len(split))], dtype=np.int64).reshape(-1, 2)
    if kind == "ram":
        descriptor = _open_in_memory(split, at_least_px, progress)
    else:
        try:
            descriptor = _open_on_disk(split, at_least_px, stamps, folder.expanduser(), progress)
        except OSError as error:
            remedy = "give another folder, or data.cache=ram or none"
            raise UserError(f"data.cache_dir={folder}: cannot be written ({error.strerror}); {remedy}") from error
    cache = PictureCache(split, at_least_px, stamps, descriptor)
    log.info("data.cache=%s: %s, %.1f MB", kind, split.name, os.fstat(descriptor).st_size / 1e6)
    return cache


def _open_in_memory(split: Split, at_least_px: int | None, progress: Progress) -> int:
    """A descriptor of a file that goes with the last process that has it; one process of a machine fills it."""
    filled = []

    def fill() -> str:
        _check_room(split, at_least_px, _free_memory(), "data.cache=ram", "memory")
        filled.append(os.memfd_create("pictures"))
        with os.fdopen(filled[0], "wb", closefd=False) as file:
            _fill(file, split, at_least_px, progress)
        return f"/proc/{os.getpid()}/fd/{filled[0]}"

    path = distributed.from_main(fill, per_machine=True)
    return filled[0] if filled else os.open(path, os.O_RDONLY)


def _open_on_disk(split: Split, at_least_px: int | None, stamps: np.ndarray, folder: Path, progress: Progress) -> int:
    """A descriptor of the file, which is made where there is none. Its name: what it is for, and what it is made of."""
    purpose = f"{split.name}-{_digest(f'{split.folder.resolve()} {at_least_px}')}"
    names = [split.file_names[index] for index in range(len(split))]
    path = folder / f"{purpose}-{_digest(f'{_LAYOUT} {PIL.__version__} {names} {stamps.tolist()}')}.pictures"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        for older in folder.glob(f"{purpose}-*.pictures"):
            log.info("%s is of other pictures than there are now, and is removed", older)
            older.unlink()  # a run that has opened it keeps it
        _check_room(split, at_least_px, shutil.disk_usage(folder).free, "data.cache=disk", str(folder))
        with replacing(path) as file:
            _fill(file, split, at_least_px, progress)
    return os.open(path, os.O_RDONLY)


def _fill(file: BinaryIO, split: Split, at_least_px: int | None, progress: Progress) -> None:
    """Decode all pictures into `file`, in any order, then write the table in front of them."""
    table = np.zeros((len(split), 3), np.int64)
    file.write(table.data)
    lock = threading.Lock()

    def store(index: int) -> None:
        pixels = split.read_image(index, at_least_px).permute(1, 2, 0).numpy()
        with lock:
            table[index] = file.tell(), *pixels.shape[:2]
            file.write(pixels.data)

    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for done, _ in enumerate(pool.map(store, range(len(split))), start=1):
            progress(done, len(split))
    finally:
        pool.shutdown(cancel_futures=True)
    file.seek(0)
    file.write(table.data)


def _check_room(split: Split, at_least_px: int | None, free_bytes: int, key: str, where: str) -> None:
    """Refuse pictures that will not fit, being as large as annotated, and JPEG where their name says so."""
    needed = 0
    for index, size_px in enumerate(split.sizes_px.tolist()):
        is_jpeg = split.file_names[index].lower().endswith((".jpg", ".jpeg", ".jfif"))
        needed += 3 * size_px[0] * size_px[1] // (reduction(size_px, at_least_px) ** 2 if is_jpeg else 1)
    if needed > _MOST * free_bytes:
        takes = f"the {len(split)} decoded pictures of {split.name} take {needed / 1e9:.1f} GB"
        may = f"{_MOST:.0%} of the {free_bytes / 1e9:.1f} GB that are free in {where} may be taken"
        raise UserError(f"{key}: {takes}, and {may}; use data.cache=none")


def _free_memory() -> int:
    """Bytes that may still be taken: of the machine's memory, and of what a container is allowed."""
    machine = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(machine["MemAvailable"].split()[0]) * 1024
    limit = _CONTROL_GROUP / "memory.max"
    if limit.is_file() and limit.read_text().strip() != "max":
        used = dict(line.split() for line in (_CONTROL_GROUP / "memory.stat").read_text().splitlines())
        free = min(free, int(limit.read_text()) - int(used["anon"]) - int(used["shmem"]))
    return free


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _stamp(path: Path) -> tuple[int, int]:
    """What changes with a file; (-1, -1) of one that is gone."""
    try:
        status = path.stat()
    except OSError:
        return (-1, -1)
    return status.st_size, status.st_mtime_ns
