"""Sweeps of real, very short trainings: nothing leaks from job to job, a killed one goes on to the bit."""

import json
from collections.abc import Callable
from pathlib import Path

from small_run import SMALL_MODEL, losses

SMALL = [
    *SMALL_MODEL,
    "data.train_images=8", "data.valid_images=4", "data.image_size_px=64", "data.num_workers=0",
    "trainer.batch_size=4", "trainer.precision=fp32", "trainer.log_every_steps=1", "optimizer.lr=1e-3",
    "logger.sample_images=1",
]  # fmt: skip


def test_a_job_leaves_the_process_as_it_found_it(sweep: Callable, tmp_path: Path) -> None:
    done = sweep(*SMALL, "trainer.epochs=1", "seed=1,2,1,1", WATCHED="1")
    assert (done.code, done.statuses()) == (0, ["completed"] * 4)
    first, *later = [json.loads(line) for line in (tmp_path / "process.jsonl").read_text().splitlines()]
    assert first["handlers"] == ["ConsoleHandler", "FileHandler"]
    assert later[-1]["open files"] == later[0]["open files"]
    assert not later[-1]["pyplot"]
    for key in ("handlers", "dtype", "threads", "gradients", "folder", "environment"):
        assert [state[key] for state in later] == [first[key]] * 3, key
    folders = [done.folder / job["folder"] for job in done.jobs()]
    assert losses(folders[0]) == losses(folders[2]) == losses(folders[3]) != losses(folders[1])
    resident_gib = [json.loads((folder / "summary.json").read_text())["memory_gib"] for folder in folders]
    assert resident_gib[-1] - resident_gib[1] < 0.05


def test_a_killed_job_goes_on_in_its_own_folder_to_the_bit(sweep: Callable, tmp_path: Path) -> None:
    arguments = [*SMALL, "logger.plots=false", "trainer.epochs=3", "seed=4"]
    whole = sweep(*arguments, WATCHED="1")
    killed = sweep(*arguments, WATCHED="1", KILLED_AT_EPOCH="2")
    assert killed.code == -9
    assert len(losses(killed.folder / "0-tiny")) == 4
    again = sweep(folder=killed.folder, WATCHED="1")
    assert (again.code, again.statuses()) == (0, ["completed"])
    assert losses(killed.folder / "0-tiny") == losses(whole.folder / "0-tiny")
    assert json.loads((killed.folder / "0-tiny" / "summary.json").read_text())["parent"].endswith(
        "0-tiny/checkpoints/last.pt"
    )
