"""One job of a sweep, as its own folder tells it, so that jobs in other processes and places need no shared memory."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from rfdetr_train.errors import Interrupted, UserError
from rfdetr_train.loggers.files import write_json

JOB_NAME, LOCK_NAME = "job.json", ".job.lock"
DONE = ("completed", "pruned")


@dataclass
class Job:
    """The content of `job.json`."""

    number: int
    overrides: list[str]
    folder: str = ""
    """Within the sweep's."""
    status: str = "queued"
    """queued, running, completed, failed, interrupted or pruned."""
    AP: float | None = None
    error: str | None = None

    @classmethod
    def read(cls, path: Path) -> "Job":
        """A job from its `job.json`; one that says it runs and holds no lock was killed, and so interrupted."""
        try:
            with FileLock(path.with_name(LOCK_NAME), timeout=0):
                job = cls(**json.loads(path.read_text(encoding="utf-8")))
                job.status = "interrupted" if job.status == "running" else job.status
        except Timeout:
            job = cls(**json.loads(path.read_text(encoding="utf-8")))
        return job

    def run(self, sweep_dir: Path, work: Callable[[], float | None], changed: Callable[[], None]) -> None:
        """Do `work`, which gives the AP and may set the status to pruned; `job.json` says how it goes and ends.

        `changed` is called when it says something new. Raises UserError if another process runs the job.
        """
        folder = sweep_dir / self.folder
        try:
            lock = FileLock(folder / LOCK_NAME).acquire(timeout=5)  # who asks whether it runs holds it for a moment
        except Timeout:
            raise UserError(f"{folder}: another process runs this job; wait for it, or stop it") from None
        with lock:
            try:
                self._write(folder, "running")
                changed()
                ap = work()
                self.AP = ap if ap is not None and math.isfinite(ap) else None
                self._write(folder, "completed" if self.status == "running" else self.status)
            except BaseException as error:
                stopped = isinstance(error, Interrupted | KeyboardInterrupt)
                self.error = None if stopped else f"{type(error).__name__}: {error}"
                self._write(folder, "interrupted" if stopped else "failed")
                raise
            finally:
                changed()

    def _write(self, folder: Path, status: str) -> None:
        self.status = status
        write_json(folder / JOB_NAME, asdict(self))
