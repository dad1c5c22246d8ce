"""Which checkpoint a run resumes from, and a run's folder kept from others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rfdetr_train.checkpoint import files
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

NOT_PART_OF_A_RUN = ("resume", "run_dir", "name", "notes", "logger", "checkpoint")
"""Keys that two runs may differ in and still be the same run for `resume=auto`."""
NOT_PART_OF_A_TRAINER = (
    "epochs", "max_steps", "early_stopping", "log_every_steps", "memory_budget_gib", "devices", "timeout_minutes",
)  # fmt: skip
"""The same of the section `trainer`: a run that is to last longer goes on."""


def find_resume(resume: str | None, run_dir: Path, runs_dir: Path, config: dict[str, Any]) -> Path | None:
    """The checkpoint that `resume=null|auto|PATH|RUN_DIR` means; None starts anew.

    null: the newest one of this config in the run's own folder: a job that was queued again, or tried again.
    auto: that, else the newest of a run under `runs_dir` with the same config.
    """
    if resume not in (None, "auto"):
        return files.resolve(resume, prefer=("last", "best"))
    places = ("*/*", "*/*/*") if resume == "auto" else ()  # of single runs, of a sweep's jobs
    folders = {path.parent for place in places for path in runs_dir.glob(f"{place}/checkpoints/*.pt")}
    others = sorted(
        map(_newest_first, folders - {run_dir / "checkpoints"}), key=lambda paths: -paths[0].stat().st_mtime
    )
    for path in (path for paths in [_newest_first(run_dir / "checkpoints"), *others] for path in paths):
        if _same_run(path, config):
            log.info("going on from %s", path)
            return path
    if resume == "auto":
        looked_at = len(folders | set(run_dir.glob("checkpoints")))
        log.warning("resume=auto: none of the %d runs in %s and under %s has this config; STARTING ANEW",
                    looked_at, run_dir, runs_dir)  # fmt: skip
    return None


def refuse_used_folder(run_dir: Path) -> None:
    """A new run does not begin where another one lies: its metrics would mix and its checkpoints be lost."""
    if list(run_dir.glob("checkpoints/*.pt")):
        raise UserError(f"{run_dir}: already holds a run; resume it (resume={run_dir}) or give another folder")


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes out of a run folder; the system frees it when this one ends, however that happens."""
    try:
        lock = FileLock(run_dir / ".lock").acquire(timeout=0)
    except OSError as error:
        reason = "another process trains in it" if isinstance(error, Timeout) else f"no writing, {error.strerror}"
        raise UserError(f"{run_dir}: {reason}; give another folder") from error
    with lock:
        yield


def clear_leftovers(run_dir: Path) -> None:
    """Remove the temporary files of writes that were killed, unless a process is at work in the folder."""
    with suppress(UserError, OSError), locked(run_dir):
        for path in run_dir.rglob(".*.tmp"):
            path.unlink()


def _newest_first(folder: Path) -> list[Path]:
    """`last.pt`, `best.pt` and the numbered ones, by time; of equal times `last.pt` first."""
    return sorted(folder.glob("*.pt"), key=lambda path: (path.stat().st_mtime, path.name == "last.pt"), reverse=True)


def _same_run(path: Path, config: dict[str, Any]) -> bool:
    try:
        saved = files.load(path)["config"]
    except UserError as error:
        log.warning("passing over %s", error)
        return False
    if config["trainer"]["batch_size"] == "auto":  # settled once, and then kept
        saved = {**saved, "trainer": {**saved["trainer"], "batch_size": "auto"}}
    return _identity(saved) == _identity(config)


def _identity(config: dict[str, Any]) -> dict[str, Any]:
    identity = {key: value for key, value in config.items() if key not in NOT_PART_OF_A_RUN}
    trainer = {key: value for key, value in config["trainer"].items() if key not in NOT_PART_OF_A_TRAINER}
    return {**identity, "trainer": trainer}
