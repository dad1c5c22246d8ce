"""A sweep's folder: what was asked for, and all jobs in one file, made from their own folders at any time.

Each job's own folder tells how it does, so that jobs in other processes and places need no shared memory.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import OmegaConf

from rfdetr_train.config import OptunaSweeperConfig
from rfdetr_train.errors import Interrupted, UserError
from rfdetr_train.loggers.files import write_json
from rfdetr_train.override import quoted

SWEEP_NAME = "sweep.json"
JOB_NAME, LOCK_NAME = "job.json", ".job.lock"
DONE = ("completed", "pruned")


@dataclasses.dataclass
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
        write_json(folder / JOB_NAME, dataclasses.asdict(self))


class SweepBegins(Callback):
    """What Hydra tells before it splits a sweep into jobs."""

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        """Write sweep.json: the command line, where it was given, and the jobs as far as they are known beforehand."""
        sweeper, sweep_dir = config.hydra.sweeper, Path(config.hydra.sweep.dir).resolve()
        jobs: list[list[str]] = []
        if str(sweeper._target_).endswith("BasicSweeper"):
            given = [*(f"{key}={value}" for key, value in (sweeper.params or {}).items()), *config.hydra.overrides.task]
            jobs = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(given), None)[0]
        if any(_is_another(job, jobs[job.number]) for job in read_jobs(sweep_dir) if job.number < len(jobs)):
            return  # its jobs refuse to run, see `run_job`; Hydra would only log what is raised here
        sweep = {
            "command": config.hydra.job.name,
            "arguments": sys.argv[1:],
            "working_folder": str(Path.cwd()),
            "num_jobs": len(jobs) or sweeper.get("n_trials"),
            "jobs": [dataclasses.asdict(Job(number, overrides)) for number, overrides in enumerate(jobs)],
        }
        write_json(sweep_dir / SWEEP_NAME, sweep)
        refresh(sweep_dir)


def continued(sweep_dir: Path, extra: Sequence[str]) -> tuple[str, list[str], Path]:
    """Command, command line and working folder that a sweep goes on with; `extra` may change how, not what, it runs.

    Raises UserError while a job of it runs, and for other keys than Hydra's.
    """
    sweep = _read_sweep(sweep_dir)
    running = [job.number for job in read_jobs(sweep_dir) if job.status == "running"]
    if running:
        raise UserError(f"sweep_dir={sweep_dir}: its job {running[0]} is running; wait for it, or stop that sweep")
    if other := [argument for argument in extra if not argument.startswith(("hydra", "launcher="))]:
        raise UserError(f"{other[0]}: a sweep goes on with its own overrides; only launcher and hydra.... may change")
    if not Path(sweep["working_folder"]).is_dir():
        raise UserError(
            f"{sweep_dir / SWEEP_NAME}: working_folder {sweep['working_folder']} is gone; give another there"
        )
    replaced = tuple(f"hydra.{argument[6:].partition('=')[0]}." for argument in extra if argument.startswith("hydra/"))
    if any(argument.startswith("launcher=") for argument in extra):
        replaced += ("hydra/launcher=", "hydra.launcher.")
    elif any(argument.startswith("hydra/launcher=") for argument in extra):
        replaced += ("launcher=",)
    kept = [argument for argument in sweep["arguments"] if not argument.startswith(replaced)]  # not another launcher's
    arguments = [*kept, *extra, f"hydra.sweep.dir={quoted(sweep_dir.resolve())}"]
    last = {argument.partition("=")[0]: argument for argument in arguments}
    return sweep["command"], list(last.values()), Path(sweep["working_folder"])


def _is_another(earlier: Job, overrides: Sequence[str]) -> bool:
    """Whether a job of this number has run with other overrides; a launcher's are not part of what it does."""
    before, now = (
        [one for one in given if not one.startswith("launcher=")] for given in (earlier.overrides, overrides)
    )
    return sorted(before) != sorted(now)


def _read_sweep(sweep_dir: Path) -> dict[str, Any]:
    path = sweep_dir / SWEEP_NAME
    if not path.is_file():
        raise UserError(
            f"sweep_dir={sweep_dir}: no {SWEEP_NAME} in it; name a sweep's folder, runs/DAY/TIME-sweep-1a2b"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def read_jobs(sweep_dir: Path) -> list[Job]:
    """Every job that has begun."""
    return [Job.read(path) for path in sweep_dir.rglob(JOB_NAME)]


def refresh(sweep_dir: Path, show: bool = False) -> None:
    """Bring sweep.json and the leaderboard up to date; `show` prints it too."""
    from rfdetr_train.sweeps.leaderboard import write_leaderboard  # Hydra imports this file at every start

    with FileLock(sweep_dir / ".sweep.lock"):
        sweep = _read_sweep(sweep_dir)
        known = {job["number"]: Job(**job) for job in sweep["jobs"]} | {job.number: job for job in read_jobs(sweep_dir)}
        jobs = [known[number] for number in sorted(known)]
        write_json(sweep_dir / SWEEP_NAME, {**sweep, "jobs": [dataclasses.asdict(job) for job in jobs]})
        write_leaderboard(sweep_dir, jobs, sweep["num_jobs"] or len(jobs), show)


def run_job(hydra_config: Any, folder: Path, command: Callable[..., float | None]) -> float | None:
    """Run `command` as the job that Hydra is at, unless it is done; its AP.

    `command(resume=...)` lets it go on from the job's last checkpoint; a study's trials get `is_hopeless` too.
    """
    from rfdetr_train.sweeps.study import is_hopeless, report

    sweep_dir, last = Path(hydra_config.sweep.dir).resolve(), folder / "checkpoints" / "last.pt"
    job = Job(hydra_config.job.num, list(hydra_config.overrides.task), str(folder.relative_to(sweep_dir)))
    earlier = Job.read(folder / JOB_NAME) if (folder / JOB_NAME).is_file() else None
    if earlier and _is_another(earlier, job.overrides):
        raise UserError(
            f"{sweep_dir}: holds another sweep, whose job {job.number} is {' '.join(earlier.overrides)}; give another "
            f"folder, or go on with that sweep: sweep_dir={sweep_dir}"
        )
    if earlier and earlier.status in DONE:
        return earlier.AP
    more: dict[str, Any] = {"resume": last} if last.is_file() else {}
    study: tuple[Any, ...] = ()
    keys: Any = OmegaConf.to_container(hydra_config.sweeper, resolve=True)  # a section alone would bring all along
    if hydra_config.runtime.choices["hydra/sweeper"] == "optuna" and hydra_config.job.name == "train":
        study = (sweep_dir, OptunaSweeperConfig(**keys), job)
        more["is_hopeless"] = partial(report, *study)

    def work() -> float | None:
        ap = command(**more)
        if study and is_hopeless(*study):
            job.status = "pruned"
        return ap

    job.run(sweep_dir, work, partial(refresh, sweep_dir, show=True))
    return job.AP
