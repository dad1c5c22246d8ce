"""The loader's worker processes: how they start, when they end, and what is said when one dies.

A worker lives as long as the process that reads from it. Ctrl-C, Slurm and timeout(1) signal a whole process group, but
the reader finishes its step first and needs its workers for that. So they and the server that forks them take no notice
of such signals, and are ended by the reader: in peace, by SIGKILL, or by its own end.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import BaseContext

import torch
from torch.utils.data import get_worker_info

from rfdetr_train.allocator import keep_freed_memory
from rfdetr_train.errors import STOP_SIGNALS, UserError

if sys.platform != "win32":
    from multiprocessing import forkserver, resource_tracker
    from multiprocessing.context import ForkServerContext, ForkServerProcess

    class _Worker(ForkServerProcess):
        def terminate(self) -> None:
            """Torch's last resort against a worker that is stuck; SIGTERM would not end it."""
            self.kill()

    class _WorkerContext(ForkServerContext):
        Process = _Worker


KEPT_BY_WORKERS = 32 << 20, 256 << 20
"""Bytes of the largest freed block that a worker keeps, a picture of 11 megapixels, and of all of them."""


def worker_context(modules: Sequence[str]) -> BaseContext:
    """How workers start: from a clean server process that has imported `modules` already.

    A fork of the main process would copy its threads' locks and its CUDA state; a spawn imports torch in each worker.
    """
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = _WorkerContext()
    context.set_forkserver_preload(list(modules))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()  # else the server starts it; it unblocks SIGINT and SIGTERM again
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        forkserver.ensure_running()  # a process inherits what is blocked, and so do those that it forks
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def prepare_worker(_worker: int) -> None:
    """To be called in a worker when it starts."""
    keep_freed_memory(*KEPT_BY_WORKERS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Windows has nothing to block it with
    # torch's own watch is on the fork server, which lives on with its workers when the reader is killed.
    threading.Thread(target=_exit_with_reader, daemon=True).start()


def _exit_with_reader() -> None:
    reader = multiprocessing.parent_process()
    assert reader is not None
    reader.join()
    os._exit(1)


def shareable(images: torch.Tensor) -> torch.Tensor:
    """The tensor in shared memory, if this is a worker. Raises: UserError if there is not enough.

    Torch would share it later and in a thread, where a failure is only printed, and the reader waits for ever.
    """
    if get_worker_info() is None:
        return images
    try:
        return images.share_memory_()
    except RuntimeError as error:
        free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
        raise UserError(
            f"a batch of {images.nbytes / 1e6:.1f} MB does not fit into shared memory (/dev/shm, {free / 1e6:.1f} MB "
            f"free): enlarge it (docker run --shm-size=2g), or lower data.num_workers or the batch size; {error}"
        ) from error


@contextmanager
def death_explained() -> Iterator[None]:
    """Turn the news of a worker's death, torch's own or a pipe that ends in an answer, into a UserError."""
    try:
        yield
    except (RuntimeError, EOFError, ConnectionError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise UserError(
            "a process that reads pictures was killed, most likely because memory ran out (dmesg tells): lower "
            f"data.num_workers, data.max_megapixels or the batch size, or use data.cache=none; {error!r}"
        ) from error
