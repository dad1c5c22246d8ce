"""The loader's worker processes: how they start, and when they end.

A worker lives as long as the process that reads from it. Ctrl-C, Slurm and timeout(1) signal a whole process group, but
the reader finishes its step first and needs its workers for that. So they and the server that forks them take no notice
of such signals, and are ended by the reader: in peace, by SIGKILL, or by its own end.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.context import BaseContext

if sys.platform != "win32":
    from multiprocessing import forkserver, resource_tracker
    from multiprocessing.context import ForkServerContext, ForkServerProcess

    class _Worker(ForkServerProcess):
        def terminate(self) -> None:
            """Torch's last resort against a worker that is stuck; SIGTERM would not end it."""
            self.kill()

    class _WorkerContext(ForkServerContext):
        Process = _Worker


def worker_context(modules: Sequence[str]) -> BaseContext:
    """How workers start: from a clean server process that has imported `modules` already.

    A fork of the main process would copy its threads' locks and its CUDA state; a spawn imports torch in each worker.
    """
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = _WorkerContext()
    context.set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # else the server starts it first, and that unblocks the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        forkserver.ensure_running()  # a process inherits what is blocked, and so do those that it forks
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def follow_the_reader(_worker: int) -> None:
    """To be called in a worker when it starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Windows has nothing to block it with
    # torch's own watch is on the fork server, which lives on with its workers when the reader is killed.
    threading.Thread(target=_exit_with_reader, daemon=True).start()


def _exit_with_reader() -> None:
    reader = multiprocessing.parent_process()
    assert reader is not None
    reader.join()
    os._exit(1)
