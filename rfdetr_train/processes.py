"""The processes of a job: started on this machine for `devices=N`, or found started by torchrun; and how they end."""

import logging
import logging.config
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from rfdetr_train import distributed
from rfdetr_train.commands import find_command
from rfdetr_train.config import EvaluateConfig, TrainConfig
from rfdetr_train.errors import STOP_SIGNALS, Interrupted, JobFailed, UserError, require
from rfdetr_train.loggers.console import silence

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobContext:
    """A command with all that it runs with, in this process or in others that are started for it."""

    command: str
    config: Any
    run_dir: Path
    logging: dict[str, Any]
    """That of this process, as `logging.config.dictConfig` takes it."""
    is_hopeless: Callable[[int, float | None], bool] | None = None
    """For a trial of a study: see Trainer."""

    @property
    def log_file(self) -> Path:
        """The job's own log."""
        return self.run_dir / f"{self.command}.log"

    def take_part(self) -> float | None:
        """Run the command as the process, or one of the processes, that this one is."""
        if not distributed.is_main():
            silence()
        config, more = self.config, {} if self.is_hopeless is None else {"is_hopeless": self.is_hopeless}
        timeout = config.trainer.timeout_minutes if isinstance(config, TrainConfig) else distributed.TIMEOUT_MINUTES
        with distributed.joined(timeout):
            run_dir = Path(distributed.from_main(lambda: str(self.run_dir)))
            return find_command(self.command)(config, run_dir, **more)

    def processes_to_start(self) -> int:
        """How many the config asks for; 1 where torchrun has started them. Raises: UserError if the two disagree."""
        config, started = self.config, distributed.size()
        if self.command not in ("train", "evaluate"):
            require(started == 1, "torchrun", self.command, "this command runs in one process; leave torchrun out")
            return 1
        section, key = (
            (config, "devices") if isinstance(config, EvaluateConfig) else (config.trainer, "trainer.devices")
        )
        if started > 1:
            ok = section.devices in (1, "auto", started)
            require(ok, key, section.devices, f"torchrun has started {started} processes; leave the key out")
            return 1
        if section.devices == "auto":
            return 1 if section.device == "cpu" else max(1, torch.cuda.device_count())
        return int(section.devices)


def run(job: JobContext) -> float | None:
    """Run a job in as many processes as its config asks for; those that torchrun has started are taken.

    Raises: what the command raises; JobFailed where one of several processes has failed and has said so.
    """
    num_processes = job.processes_to_start()
    return _start(job, num_processes) if num_processes > 1 else job.take_part()


def _start(job: JobContext, num_processes: int) -> float | None:
    """Start processes on this machine and wait for their end."""
    if multiprocessing.get_start_method(allow_none=True) not in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("spawn", force=True)  # joblib's own, which our children would not know
    said = multiprocessing.get_context("spawn").Event()
    _let_torch_speak_in_the_log_file_only()
    log.info("starting %d processes", num_processes)
    with tempfile.TemporaryDirectory() as folder, _passing_signals_on() as passed:
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_processes,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            run_id=job.run_dir.name,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            signals_to_handle="SIGQUIT",  # the others are passed on, and the processes have time to save
        )
        try:
            outcome = elastic_launch(launch, _process)(job, said)[0]
        except ChildFailedError as error:
            if passed:
                raise Interrupted(passed[0]) from error
            raise _explained(error, job.run_dir, said.is_set()) from error
    if isinstance(outcome, signal.Signals):
        raise Interrupted(outcome)
    return outcome


def _process(job: JobContext, said: Event) -> float | signal.Signals | None:
    """One of the processes: what the command returns, or the signal that ended it. `said`: why it failed is known."""
    os.setpgrp()  # Ctrl-C reaches the process that has started this one, and comes once from there
    logging.config.dictConfig(job.logging)
    try:
        return job.take_part()
    except Interrupted as interruption:
        return signal.Signals(interruption.signal_number)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    except Exception as error:
        log_failure(distributed.first_failure(error), job.log_file)
        if distributed.is_main():
            said.set()
        os._exit(1)  # what NCCL does at the end may wait for a process that has gone


@contextmanager
def _passing_signals_on() -> Iterator[list[int]]:
    """Signals go to all processes that were started, and are listed."""
    passed: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed.append(number)
        for child in multiprocessing.active_children():
            if child.pid is not None:
                os.kill(child.pid, number)

    before = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _let_torch_speak_in_the_log_file_only() -> None:
    """Its tracebacks of processes that have ended would bury what those have said themselves."""
    for name in ("torch", "torch.distributed"):
        logger, handlers = logging.getLogger(name), logging.getLogger().handlers
        logger.handlers = [handler for handler in handlers if isinstance(handler, logging.FileHandler)]
        logger.propagate = False


def _explained(error: ChildFailedError, run_dir: Path, said: bool) -> BaseException:
    """How the process ended that ended first, unless one has `said` it."""
    rank, failure = error.get_first_failure()
    if failure.exitcode == 128 + signal.SIGINT:
        return Interrupted(signal.SIGINT)
    if failure.exitcode >= 0 and said:
        return JobFailed(failure.message)
    if failure.exitcode >= 0:
        return UserError(f"process {rank} of the job ended with code {failure.exitcode}: {failure.message}")
    hint = " (dmesg tells whether memory ran out)" if failure.exitcode == -signal.SIGKILL else ""
    saved = f"; resume={run_dir} goes on from the last save" if list(run_dir.glob("checkpoints/*.pt")) else ""
    return UserError(f"process {rank} of the job was killed by {failure.signal_name()}{hint}{saved}")


def log_failure(error: Exception, log_file: Path) -> None:
    """One plain message on the terminal; the traceback goes into the job's own log at once."""
    if isinstance(error, JobFailed):
        return  # one of the processes has said it
    if isinstance(error, UserError):
        log.error("%s", error)
    else:
        log.error("%s: %s (the traceback is in %s)", type(error).__name__, error, log_file)
    log.debug("traceback", exc_info=error)
    logging.shutdown()  # flush: the next job of a sweep opens a log of its own
