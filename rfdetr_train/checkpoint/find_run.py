"""Which checkpoint a run resumes from."""

import logging
from pathlib import Path
from typing import Any

from rfdetr_train.checkpoint import files
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

NOT_PART_OF_A_RUN = ("resume", "run_dir", "name", "notes", "logger", "checkpoint")
"""Keys that two runs may differ in and still be the same run for `resume=auto`."""


def find_resume(resume: str | None, run_dir: Path, runs_dir: Path, config: dict[str, Any]) -> Path | None:
    """The checkpoint that `resume=null|auto|PATH|RUN_DIR` means; None starts anew.

    auto: this run's own folder (a requeued job), else the newest run under `runs_dir` with the same config.
    """
    if resume is None:
        return None
    if resume != "auto":
        return files.resolve(resume, prefer=("last", "best"))
    places = ("*/*", "*/*/*")  # of single runs, of a sweep's jobs
    found = [path for place in places for path in runs_dir.glob(f"{place}/checkpoints/last.pt")]
    newest_first = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    own = run_dir / "checkpoints" / "last.pt"
    for path in [own, *(path for path in newest_first if path != own)]:
        if path.is_file() and _same_run(path, config):
            log.info("resume=auto: going on from %s", path)
            return path
    log.info("resume=auto: no run with this config under %s, starting anew", runs_dir)
    return None


def _same_run(path: Path, config: dict[str, Any]) -> bool:
    try:
        saved = files.load(path)["config"]
    except UserError as error:
        log.warning("resume=auto: passing over %s", error)
        return False
    if config["trainer"]["batch_size"] == "auto":  # settled once, and then kept
        saved = {**saved, "trainer": {**saved["trainer"], "batch_size": "auto"}}
    return _identity(saved) == _identity(config)


def _identity(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in NOT_PART_OF_A_RUN}
