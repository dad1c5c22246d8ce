"""Training and evaluating in several processes: the same numbers as in one, and an end that is told."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from comparison import rows_without_speed
from conftest import SMALL
from small_run import losses

from rfdetr_train import processes
from rfdetr_train.checkpoint import files
from rfdetr_train.cli import compose_config
from rfdetr_train.errors import Interrupted, JobFailed, UserError

Run = Callable[..., Path]
FAULT = """
import os, signal, torch
from rfdetr_train.errors import UserError

class Fault(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.calls = how, 0

    def forward(self, *inputs):
        self.calls += 1
        if os.environ["RANK"] == "1" and self.calls == 7:
            if self.how == "raise":
                raise UserError("this picture is not to be had")
            os.kill(os.getpid(), getattr(signal, self.how))
        return inputs if len(inputs) > 1 else inputs[0]
"""


@pytest.fixture
def run_many(shapes_root: Path, tmp_path: Path) -> Run:
    """`run_many("name", "key=value", ...)` trains in `tmp_path/runs/day/name`; `"3 evaluate"` evaluates there."""

    def start(name: str, *overrides: str) -> Path:
        run_dir = tmp_path / "runs" / "day" / name
        run_dir.mkdir(parents=True)
        command = "evaluate" if name.endswith("evaluate") else "train"
        of_training = [*SMALL, f"data.root={shapes_root}"] if command == "train" else []
        config = compose_config(command, [*of_training, f"run_dir={tmp_path / 'runs'}", *overrides])
        handler = {"class": "logging.FileHandler", "filename": str(run_dir / "train.log"), "formatter": "plain"}
        logs = {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"plain": {"format": "%(levelname)s %(message)s"}},
            "handlers": {"file": handler},
            "root": {"level": "INFO", "handlers": ["file"]},
        }
        processes.run(processes.JobContext(command, config, run_dir, logs))
        return run_dir

    return start


TWENTY = ["trainer.epochs=7", "trainer.max_steps=20", "data.train_images=9", "evaluation.every_epochs=7"]
"""Nine pictures in steps of four: in the last step of an epoch one picture, and no share for the second process."""


def test_blocks_that_feed_nothing_do_not_disturb_the_exchange(run_many: Run) -> None:
    """`model=base` has one: features after block 11 of 12."""
    options = ["model.encoder_depth=3", "trainer.max_steps=3", "logger.plots=false"]
    one = run_many("one", *options)
    two = run_many("two", *options, "trainer.batch_size=2", "trainer.devices=2")
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)


def test_two_processes_train_like_one_with_twice_the_batch(run_many: Run) -> None:
    """Up to float32 rounding, which AdamW makes larger; a picture lost or doubled would change far more."""
    one = run_many("one", *TWENTY, "evaluation.batch_size=2", "logger.plots=false")
    two = run_many("two", *TWENTY, "trainer.batch_size=2", "trainer.devices=2", "data.cache=ram")
    pairs = list(zip(rows_without_speed(one), rows_without_speed(two), strict=True))
    print("step, loss of one process of four, of two of two, relative difference")
    for first, second in pairs:
        assert first.keys() == second.keys()
        if first["split"] == "train":
            difference = abs(first["loss"] / second["loss"] - 1)
            print(first["step"], first["loss"], second["loss"], f"{difference:.1e}")
            assert difference < 1e-5
            assert first["grad_norm"] == pytest.approx(second["grad_norm"], rel=1e-3)
            assert (first["scale_px"], first["lr"]) == (second["scale_px"], second["lr"])
    last = [files.load(folder / "checkpoints/last.pt") for folder in (one, two)]
    assert last[0]["counts"] == last[1]["counts"] == {"images_per_step": 4, "train": 9, "valid": 4}
    worst = max(float((last[0]["model"][key] - last[1]["model"][key]).abs().max()) for key in last[0]["model"])
    print("largest difference of a weight", worst)
    assert worst < 1e-3  # a rate of 1e-3, of which a gradient near 0 decides the sign
    assert json.loads((two / "summary.json").read_text())["processes"] == 2

    # four pictures in batches of two: of three processes two have a batch and one has none
    options = [f"checkpoint={two}", "batch_size=2", "data.num_workers=0", "sample_images=0"]
    alone, shared = (run_many(f"{n} evaluate", *options, f"devices={n}") for n in (1, 3))
    assert (alone / "results.json").read_bytes() == (shared / "results.json").read_bytes()
    contents = [json.loads((folder / "evaluation.json").read_text()) for folder in (alone, shared)]
    assert [content.pop("processes") for content in contents] == [1, 3]
    assert contents[0] == contents[1]


def test_a_run_moves_between_two_processes_and_one(run_many: Run) -> None:
    options = ["scheduler=constant", "logger.plots=false", "trainer.accumulation_steps=2", "ema=none"]
    one, two = ["trainer.batch_size=2"], ["trainer.batch_size=1", "trainer.devices=2"]
    whole = run_many("whole", *options, *one, "trainer.max_steps=6")
    first = run_many("first", *options, *two, "trainer.max_steps=2")  # in the middle of an epoch of three steps
    second = run_many("second", *options, *one, "trainer.max_steps=4", f"resume={first}")
    third = run_many("third", *options, *two, "trainer.max_steps=6", f"resume={second}")
    assert losses(third) == pytest.approx(losses(whole), rel=1e-5)
    assert len(losses(third)) == 6
    assert losses(third)[:4] == losses(second)


slow = pytest.mark.skipif("RFDETR_TRAIN_LAUNCHES" not in os.environ, reason="RFDETR_TRAIN_LAUNCHES=1 runs it, 40 s")


@pytest.mark.parametrize("how", [pytest.param("raise", marks=slow), "SIGKILL", "SIGTERM"])
def test_what_happens_to_one_process_ends_all(
    run_many: Run, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the seventh picture of the second process, which is of its fourth step."""
    (tmp_path / "fault.py").write_text(FAULT)
    monkeypatch.syspath_prepend(tmp_path)
    endless = ["trainer.batch_size=2", "trainer.epochs=500", "evaluation.every_epochs=500", "logger.plots=false"]
    fault = f"augmentation.extra=[{{_target_: fault.Fault, how: {how}}}]"
    expected: type[BaseException] = {"raise": JobFailed, "SIGKILL": UserError, "SIGTERM": Interrupted}[how]
    with pytest.raises(expected) as end:
        run_many("fault", *endless, fault, "trainer.devices=2")
    run_dir = tmp_path / "runs/day/fault"
    log, summary = (run_dir / "train.log").read_text(), json.loads((run_dir / "summary.json").read_text())
    if how == "raise":
        assert log.count("ERROR augmentation.extra: Fault() fails: UserError: this picture is not to be had\n") == 1
        assert summary["status"] == "failed"
    elif how == "SIGKILL":
        assert "process 1 of the job was killed by SIGKILL" in str(end.value)
    else:
        assert (end.value.signal_number, summary["status"]) == (signal.SIGTERM, "interrupted")
        loop = files.load(run_dir / "checkpoints/last.pt")["loop"]
        assert loop["step"] == summary["steps"] == len(losses(run_dir)) > 3


def torchrun(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "rfdetr_train"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(cwd / "temporary")}
    (cwd / "temporary").mkdir(exist_ok=True)
    return subprocess.run([*command, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


@slow
def test_torchrun_makes_one_run_folder_and_is_refused_for_sweeps(tmp_path: Path) -> None:
    done = torchrun(*SMALL, "trainer.batch_size=2", "trainer.max_steps=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (path.parent for path in tmp_path.glob("runs/*/*/train.log"))
    assert json.loads((run_dir / "summary.json").read_text())["processes"] == 2
    assert done.stdout.count("run folder: ") == 1
    assert not list(tmp_path.glob("temporary/tmp*"))
    refused = torchrun("-m", "optimizer.lr=1e-3,1e-4", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.count("-m: a sweep under torchrun would hang in its second job") == 1
    assert len(list(tmp_path.glob("runs/*/*"))) == 1


@pytest.mark.parametrize(
    ("command", "overrides", "message"),
    [
        ("train", ["trainer.devices=3"], "trainer.devices=3: torchrun has started 2 processes; leave the key out"),
        ("doctor", [], "torchrun=doctor: this command runs in one process"),
    ],
)
def test_what_torchrun_cannot_start_is_refused(
    command: str, overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name, value in zip(names, (0, 2, 0, 0, 2, "localhost", 1), strict=True):
        monkeypatch.setenv(name, str(value))
    job = processes.JobContext(command, compose_config(command, [*SMALL, *overrides]), tmp_path, {"version": 1})
    with pytest.raises(UserError, match=re.escape(message)):
        processes.run(job)


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_a_number_of_processes_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(UserError, match=f"trainer.devices={value}: give a number above 0, or auto"):
        compose_config("train", [f"trainer.devices={value}"])
