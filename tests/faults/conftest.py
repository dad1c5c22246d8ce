"""Runs in processes of their own, which may be killed: forked from one that has imported everything already."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_run import SMALL_MODEL

SMALL = [
    *SMALL_MODEL, "data.train_images=6",
    "data.valid_images=2", "data.image_size_px=64", "data.num_workers=0", "trainer.batch_size=2",
    "trainer.precision=fp32", "trainer.log_every_steps=1", "optimizer.lr=1e-3", "logger.plots=false",
    "checkpoint.every_steps=1", "checkpoint.keep=2", "evaluation.weights=raw",
]  # fmt: skip
"""Six pictures in batches of two: three steps an epoch."""

HOST = """
import os, signal, sys, traceback
from pathlib import Path
from rfdetr_train.cli import compose_config
from rfdetr_train.commands.train import train
from rfdetr_train.errors import UserError

def killing(name, number):
    '''`os.NAME` as it is, but for call number NUMBER, in the middle of which the process dies.'''
    real, calls = getattr(os, name), [0]
    def call(*arguments, **options):
        calls[0] += 1
        if calls[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(os, name, call)

def run(folder, fault, overrides):
    if fault != "none":
        name, number = fault.split(":")
        killing(name, int(number))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        train(compose_config("train", overrides), Path(folder))
        return 0
    except UserError as error:
        print("refused", str(error).replace("\\n", " "), flush=True)
        return 1
    except BaseException:
        traceback.print_exc()
        return 2

for line in sys.stdin:
    folder, fault, *overrides = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if not child:
        os._exit(run(folder, fault, overrides))
    print("started", child, flush=True)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Host:
    """Starts runs one after the other."""

    def __init__(self, process: subprocess.Popen[str], fixed: list[str]) -> None:
        self.process, self.fixed = process, fixed
        self.refusal = ""

    def start(self, folder: Path, *overrides: str, fault: str = "none") -> int:
        """The process id of a run in `folder`; `fault` kills it inside a call, such as the third of `fsync:3`."""
        assert self.process.stdin is not None
        self.process.stdin.write(
            "\t".join([str(folder), fault, *SMALL, *self.fixed, f"run_dir={folder.parent.parent}", *overrides]) + "\n"
        )
        self.process.stdin.flush()
        return int(self._answer("started"))

    def wait(self) -> int:
        """The exit code of the run, minus the signal that killed it; what it refused is in `refusal`."""
        return int(self._answer("ended"))

    def run(self, folder: Path, *overrides: str, fault: str = "none") -> int:
        """Both."""
        self.start(folder, *overrides, fault=fault)
        return self.wait()

    def _answer(self, wanted: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "refused":
                self.refusal = rest
            if kind == wanted:
                return rest
        raise AssertionError("the host has ended")


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One for all tests; its runs share a demo set, and their folders lie under `host_runs`."""
    folder = tmp_path_factory.mktemp("host")
    script = folder / "host.py"
    script.write_text(HOST)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=folder,
    ) as process:  # fmt: skip
        yield Host(process, [f"data.root={folder / 'shapes'}"])
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    """`folder("a")`: where a run of that name lies; each has a `runs` of its own, so that auto finds no other one."""
    return lambda name: tmp_path / name / "runs" / "day" / "run"
