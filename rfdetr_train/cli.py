"""The command line: compose a config with Hydra, check it, and hand plain dataclasses to a command."""

import contextlib
import dataclasses
import logging
import os
import secrets
import sys
import tempfile
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rfdetr_train import __version__
from rfdetr_train.commands import find_command
from rfdetr_train.errors import Interrupted, JobFailed, UserError, did_you_mean
from rfdetr_train.override import quoted

COMMANDS = ("train", "evaluate", "predict", "export", "doctor")
FOLDER_COMMANDS = ("report", "compare", "replay")
"""Commands that take run folders, or a file, and no config."""
PACKAGE = Path(__file__).resolve().parent
PLUGINS = str(PACKAGE / "sweeps" / "plugins")
"""Where our part of `hydra_plugins` lies, the namespace package that Hydra takes sweepers from."""
log = logging.getLogger(__name__)


def conf_dir() -> Path:
    """The folder of YAML files: packaged in a wheel, beside the package in a checkout or an editable install."""
    packaged = PACKAGE / "conf"
    return packaged if packaged.is_dir() else PACKAGE.parent / "conf"


def main() -> None:
    """Run `sys.argv` and exit: 0 done, 1 refused or failed, 128 + n after signal n (the run is saved first)."""
    logging.raiseExceptions = False  # on a full disk the log's complaints would bury the message that ends the run
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    if page := _page(arguments):
        sys.stdout.write(page)
        return 0
    command = "train"
    wants_tracebacks = bool(os.environ.get("HYDRA_FULL_ERROR"))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and every error is shown in one way: ours
    try:
        if arguments[:1] and arguments[0] in FOLDER_COMMANDS:
            find_command(arguments[0])(arguments[1:])
            return 0
        folder = Path()
        if any(argument.startswith("sweep_dir=") for argument in arguments[1:]):
            raise UserError("sweep_dir=: stands first, without -m: the sweep knows its own command line")
        if arguments[:1] and arguments[0].startswith("sweep_dir="):
            from rfdetr_train.sweeps.folder import continued

            command, arguments, folder = continued(Path(arguments[0].partition("=")[2]), arguments[1:])
        else:
            command, arguments = _split_command(_with_checkpoint(arguments))
        with contextlib.chdir(folder):
            _run_hydra(command, arguments)
        return 0
    except Interrupted as interruption:
        return 128 + interruption.signal_number
    except Exception as error:
        if wants_tracebacks:
            raise
        return _show(error, command, arguments)
    except KeyboardInterrupt:
        return 130
    finally:
        if not wants_tracebacks:
            del os.environ["HYDRA_FULL_ERROR"]


def _page(arguments: list[str]) -> str:
    """What `--help` or `--version` asks for; "" for any other command line."""
    if {"-h", "--help"} & set(arguments):
        from rfdetr_train.cli_help import command_help, help_text

        known = (*COMMANDS, *FOLDER_COMMANDS)
        return command_help(arguments[0]) if arguments[0] in COMMANDS else help_text(conf_dir(), known)
    return f"rfdetr_train {__version__}\n" if "--version" in arguments else ""


def _show(error: Exception, command: str, arguments: list[str]) -> int:
    """Say what went wrong, unless the job has said it in its log and on the terminal; the exit code."""
    if isinstance(error, OSError) and error.filename:  # Hydra could not make the run's folder
        sys.stderr.write(f"{error.filename}: {error.strerror}; give a folder that can be written, run_dir=...\n")
    elif not isinstance(error, JobFailed):
        from rfdetr_train.cli_help import explain

        sys.stderr.write(f"{explain(error, command, arguments)}\n")
    return 1


def _with_checkpoint(arguments: list[str]) -> list[str]:
    """`evaluate RUN` is `evaluate checkpoint=RUN`; `report` and `compare` take it so."""
    if len(arguments) > 1 and arguments[0] in ("evaluate", "predict", "export") and Path(arguments[1]).exists():
        path = str(Path(arguments[1]).resolve())
        if not path.endswith((".yaml", ".yml")):
            return [arguments[0], f"checkpoint={quoted(path)}", *arguments[2:]]
    return arguments


def _split_command(arguments: list[str]) -> tuple[str, list[str]]:
    """The command word, train when there is none, and the rest; a saved config knows its own command."""
    named = arguments[:1] if arguments and arguments[0].isidentifier() else []
    if named and named[0] not in COMMANDS:
        known = (*COMMANDS, *FOLDER_COMMANDS)
        hint = did_you_mean(named[0], known) or f"the commands are {', '.join(known)}"
        raise UserError(f"{named[0]}: no such command; {hint}")
    rest = arguments[len(named) :]
    if not rest or not rest[0].endswith((".yaml", ".yml")) or "=" in Path(rest[0]).name:
        return (named or ["train"])[0], rest
    return _split_saved_config(Path(rest[0]), named, rest[1:])


def _split_saved_config(file: Path, named: list[str], rest: list[str]) -> tuple[str, list[str]]:
    """`RUN_DIR/config.yaml` repeats that run: Hydra takes the file as the primary config."""
    if not file.is_file():
        raise UserError(f"{file}: no such config file (looked for {file.resolve()})")
    defaults = [line[2:].strip() for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    command = defaults[0] if defaults else ""
    if command not in COMMANDS or (named and named[0] != command):
        wanted = named[0] if named else "any command"
        raise UserError(f"{file}: is no saved config of {wanted}; give the config.yaml of a run")
    return command, ["--config-dir", str(file.resolve().parent), "--config-name", file.stem, *rest]


def _run_hydra(command: str, arguments: list[str]) -> None:
    import hydra

    _prepare_hydra()
    task = _Task(command)
    with _among_processes(arguments) as overrides:
        sys.argv = ["rfdetr_train", *arguments, *overrides]
        hydra.main(version_base=None, config_path=str(conf_dir()), config_name=command)(task)()
    if task.failure is not None:
        raise JobFailed(str(task.failure)) from task.failure


@contextlib.contextmanager
def _among_processes(arguments: list[str]) -> Iterator[list[str]]:
    """Overrides that let one of the processes of torchrun make the run folder and log, and all others none."""
    if "LOCAL_RANK" not in os.environ:  # torch, which is slow to import, is not asked for nothing
        yield []
        return
    from rfdetr_train import distributed

    try:
        if distributed.size() > 1 and {"-m", "--multirun"} & set(arguments):
            raise UserError("-m: a sweep under torchrun would hang in its second job; leave torchrun out and sweep "
                            "with trainer.devices=N, or start torchrun for each job")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            of_others = [f"hydra.run.dir={folder}", "hydra.job_logging.root.handlers=[file]"]
            yield [] if distributed.is_main() else of_others
    except Exception as error:
        if distributed.is_main():
            raise
        raise JobFailed(str(distributed.first_failure(error))) from error  # the main process says it


def _prepare_hydra() -> None:
    from omegaconf import OmegaConf

    from rfdetr_train import launchers, schema

    schema.register()
    launchers.register()
    if PLUGINS not in sys.path:
        sys.path.append(PLUGINS)
    # use_cache: the folder of a run is asked for more than once and must not change
    OmegaConf.register_new_resolver("run_token", lambda: secrets.token_hex(2), use_cache=True, replace=True)
    OmegaConf.register_new_resolver("run_label", _run_label, replace=True)


def _run_label(job_name: str, *, _root_: Any) -> str:
    """`nano` for a training run, `evaluate` for an evaluation."""
    model = _root_.get("model")
    return str(model.name) if model is not None and job_name != "doctor" else job_name


class _Task:
    """What Hydra calls for each job, also several times in one process."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.__name__ = command
        self.failure: Exception | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        _prepare_hydra()  # a launcher has sent the task to another process
        self.__dict__.update(state)

    def __call__(self, composed: Any) -> float | None:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        from rfdetr_train import distributed, launchers, processes
        from rfdetr_train.sweeps.folder import run_job

        run_dir = Path(HydraConfig.get().runtime.output_dir).resolve()
        is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        try:
            launchers.prepare_job(HydraConfig.get(), is_sweep)
            if is_sweep:
                return run_job(HydraConfig.get(), run_dir, partial(self._run, composed, run_dir))
            return self._run(composed, run_dir)
        except Interrupted as interruption:
            launchers.hand_on(interruption.signal_number)
            raise
        except Exception as raised:
            error = distributed.first_failure(raised)
            processes.log_failure(error, run_dir / f"{self.command}.log")
            traceback.clear_frames(error.__traceback__)  # the model of a failed job must not outlive it in a sweep
            if is_sweep:
                raise JobFailed(str(error)) from error  # the sweep goes on with the other jobs, and then names this one
            self.failure = error  # raised once Hydra is done, whose own report would only say it again
            return None

    def _run(self, composed: Any, run_dir: Path, resume: Path | None = None, is_hopeless: Any = None) -> Any:
        """Check the config, save it, and run the command; a job of a sweep may resume, and be part of a study."""
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        from rfdetr_train import processes
        from rfdetr_train.schema import make_paths_absolute, save_config, to_dataclass

        make_paths_absolute(composed)
        config = to_dataclass(composed)
        try:
            save_config(composed, HydraConfig.get().runtime.choices, run_dir, self.command)
        except OSError as error:
            raise UserError(f"{run_dir}: the run's folder cannot be written ({error.strerror}); free space there, or "
                            "choose another run_dir") from error  # fmt: skip
        logs: Any = OmegaConf.to_container(HydraConfig.get().job_logging, resolve=True)
        if resume is not None:
            config = dataclasses.replace(config, resume=str(resume))
        return processes.run(processes.JobContext(self.command, config, run_dir, logs, is_hopeless))


def compose_config(command: str, overrides: list[str]) -> Any:
    """The checked dataclass of a command line, without a run: for tests and scripts."""
    from hydra import compose, initialize_config_dir

    from rfdetr_train.schema import to_dataclass

    _prepare_hydra()
    with initialize_config_dir(version_base=None, config_dir=str(conf_dir())):
        return to_dataclass(compose(config_name=command, overrides=overrides))
