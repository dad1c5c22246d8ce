"""The processes of a job: started on this machine for `devices=N`, or found started by torchrun; and how they end."""

import logging
import logging.config
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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

Job = tuple[str, Any, Path, dict[str, Any]]
"""The command, its config, the run folder, and what else it is given."""


def run(command: str, config: Any, run_dir: Path, logging_config: dict[str, Any], **more: Any) -> float | None:
    """Run a command in as many processes as its config asks for; those that torchrun has started are taken.

    `logging_config`, of `logging.config.dictConfig`, is that of this process. Raises: what the command raises;
    JobFailed where one of several processes has failed and has said so.
    """
    num_processes = _processes_to_start(command, config)
    if num_processes > 1:
        return _start((command, config, run_dir, more), logging_config, num_processes)
    return _take_part(command, config, run_dir, more)


def _processes_to_start(command: str, config: Any) -> int:
    started = distributed.size()
    if command not in ("train", "evaluate"):
        require(started == 1, "torchrun", command, "this command runs in one process; leave torchrun out")
        return 1
    section, key = (config, "devices") if isinstance(config, EvaluateConfig) else (config.trainer, "trainer.devices")
    if started > 1:
        ok = section.devices in (1, "auto", started)
        require(ok, key, section.devices, f"torchrun has started {started} processes; leave the key out")
        return 1
    if section.devices == "auto":
        return 1 if section.device == "cpu" else max(1, torch.cuda.device_count())
    return int(section.devices)


def _take_part(command: str, config: Any, run_dir: Path, more: dict[str, Any]) -> float | None:
    if not distributed.is_main():
        silence()
    timeout = config.trainer.timeout_minutes if isinstance(config, TrainConfig) else distributed.TIMEOUT_MINUTES
    with distributed.joined(timeout):
        return find_command(command)(config, Path(distributed.from_main(lambda: str(run_dir))), **more)


def _start(job: Job, logging_config: dict[str, Any], num_processes: int) -> float | None:
    """Start processes on this machine and wait for their end."""
    run_dir = job[2]
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
            run_id=run_dir.name,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            signals_to_handle="SIGQUIT",  # the others are passed on, and the processes have time to save
        )
        try:
            outcome = elastic_launch(launch, _process)(job, logging_config, said)[0]
        except ChildFailedError as error:
            if passed:
                raise Interrupted(passed[0]) from error
            raise _explained(error, run_dir, said.is_set()) from error
    if isinstance(outcome, signal.Signals):
        raise Interrupted(outcome)
    return outcome


def _process(job: Job, logging_config: dict[str, Any], said: Event) -> float | signal.Signals | None:
    """One of the processes: what the command returns, or the signal that ended it. `said`: why it failed is known."""
    os.setpgrp()  # Ctrl-C reaches the process that has started this one, and comes once from there
    logging.config.dictConfig(logging_config)
    try:
        return _take_part(*job)
    except Interrupted as interruption:
        return signal.Signals(interruption.signal_number)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    except Exception as error:
        log_failure(distributed.first_failure(error), job[2] / f"{job[0]}.log")
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
