"""Which checkpoint a run goes on from: its own, else the newest whole one of the same config."""

import os
from pathlib import Path
from typing import Any

import pytest

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.find_run import find_resume

CONFIG = {"trainer": {"batch_size": 2, "epochs": 3}, "optimizer": {"lr": 1e-4}, "resume": None}


def checkpoint(path: Path, age_s: int, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.save(path, {"loop": {"step": 1}, "config": {**CONFIG, **changes}})
    os.utime(path, (2e9 - age_s, 2e9 - age_s))
    return path


def cut_in_half(path: Path, age_s: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = checkpoint(path, age_s).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    os.utime(path, (2e9 - age_s, 2e9 - age_s))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Of the config: a run and a job of a sweep; of another one: the newest run."""
    checkpoint(tmp_path / "monday/09-nano/checkpoints/last.pt", age_s=50)
    checkpoint(tmp_path / "monday/10-sweep/0-nano/checkpoints/step-000007.pt", age_s=40)
    cut_in_half(tmp_path / "monday/10-sweep/0-nano/checkpoints/last.pt", age_s=30)
    checkpoint(tmp_path / "monday/11-nano/checkpoints/last.pt", age_s=10, optimizer={"lr": 1.0})
    return tmp_path


def test_auto_takes_the_newest_whole_one_of_the_config(runs: Path) -> None:
    found = find_resume("auto", runs / "tuesday/09-nano", runs, CONFIG)
    assert found == runs / "monday/10-sweep/0-nano/checkpoints/step-000007.pt"
    assert find_resume("auto", runs / "tuesday/09-nano", runs, {**CONFIG, "optimizer": {"lr": 0.5}}) is None


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_job_that_is_queued_again_takes_its_own_however_old(runs: Path, resume: str | None) -> None:
    own = checkpoint(runs / "sunday/12-nano/checkpoints/last.pt", age_s=90)
    cut_in_half(own.with_name("step-000009.pt"), age_s=0)
    assert find_resume(resume, runs / "sunday/12-nano", runs, CONFIG) == own


def test_a_new_run_starts_anew_unless_told(runs: Path) -> None:
    assert find_resume(None, runs / "tuesday/09-nano", runs, CONFIG) is None
    assert find_resume(None, runs / "monday/11-nano", runs, CONFIG) is None  # the folder of another config
