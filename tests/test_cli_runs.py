"""Runs and sweeps started as a user starts them; each process imports torch, so there are few."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_run import finish, losses

SMALL = [
    "model=tiny", "model.resolution=64", "model.encoder_depth=2", "model.feature_blocks=[1,2]", "model.num_queries=10",
    "model.group_detr=2", "data.train_images=4", "data.valid_images=2", "data.image_size_px=64", "data.num_workers=0",
    "trainer.batch_size=2", "trainer.epochs=1", "trainer.log_every_steps=1", "trainer.precision=fp32", "weights=none",
    "logger.sample_images=1",
]  # fmt: skip


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rfdetr_train", *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_folders(cwd: Path) -> list[Path]:
    return sorted(path.parent for path in cwd.glob("runs/*/*/config.yaml"))


def test_a_sweep_gives_each_job_its_own_folder_and_survives_a_bad_one(tmp_path: Path) -> None:
    shown = finish(start("-m", *SMALL, "optimizer.lr=1e-3,-1,5e-4", cwd=tmp_path), code=1)
    jobs = sorted(tmp_path.glob("runs/*/*-sweep-*/*-tiny"))
    assert [job.name for job in jobs] == ["0-tiny", "1-tiny", "2-tiny"]
    finished = [(job / "checkpoints/best.pt").is_file() for job in jobs]
    assert finished == [True, False, True]
    assert losses(jobs[0])[1:] != losses(jobs[2])[1:]
    assert "Traceback" in (jobs[1] / "train.log").read_text()
    assert "optimizer.lr=-1" in shown
    assert "Traceback" not in shown

    # a saved config run again, from another folder, is the same run
    (tmp_path / "elsewhere").mkdir()
    finish(start(str(jobs[2] / "config.yaml"), cwd=tmp_path / "elsewhere"), code=0)
    (again,) = run_folders(tmp_path)
    assert losses(again) == losses(jobs[2])


def test_two_runs_at_once_have_two_folders_and_one_data_set(tmp_path: Path) -> None:
    both = [start(*SMALL, cwd=tmp_path) for _ in range(2)]
    shown = [finish(process, code=0) for process in both]
    first, second = run_folders(tmp_path)
    assert losses(first) == losses(second)
    assert {text.rstrip().rsplit(" ", 1)[-1] for text in shown} == {str(first), str(second)}  # the last line
    assert len(list(tmp_path.glob("data/shapes/*/train"))) == 1

    shown_evaluation = finish(start("evaluate", f"checkpoint={first}", "data.num_workers=0", cwd=tmp_path), code=0)
    assert "AP50" in shown_evaluation
    (result,) = tmp_path.glob("runs/*/*-evaluate-*/evaluation.json")
    best = json.loads((first / "summary.json").read_text())["best"]
    assert json.loads(result.read_text())["AP"] == pytest.approx(best["AP"], abs=1e-9)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_saves_and_the_run_goes_on_from_there(tmp_path: Path, number: signal.Signals, code: int) -> None:
    many = [*SMALL, "trainer.epochs=500", "evaluation.every_epochs=1000", "checkpoint.every_epochs=1000"]
    process = start(*many, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    finish(process, code)
    (run_dir,) = run_folders(tmp_path)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["steps"] == len(losses(run_dir)) > 0
    end = summary["steps"] + 3
    finish(start(*many, f"resume={run_dir}", f"trainer.max_steps={end}", cwd=tmp_path), code=0)
    resumed = next(folder for folder in run_folders(tmp_path) if folder != run_dir)
    assert losses(resumed)[: summary["steps"]] == losses(run_dir)
    assert len(losses(resumed)) == end


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    process = start(*SMALL, cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=240) == 0
    (run_dir,) = run_folders(tmp_path)
    assert "nobody reads the standard output" in (run_dir / "train.log").read_text()
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "completed"
