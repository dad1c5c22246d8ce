"""Disks that fill up, folders that cannot be written or go away: a plain message, and what was saved stays."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rfdetr_train.checkpoint import files
from rfdetr_train.loggers.files import MetricsFiles

Folder = Callable[[str], Path]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.is_file():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """`small_disk(kib)`: the mount point of a file system of that size."""
    place = tmp_path / "disk"

    def mount(kib: int) -> Path:
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(place)]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode:
            pytest.skip(f"mounting a small file system is not permitted here: {answer.stderr.strip()}")
        return place

    if sys.platform != "linux" or shutil.which("mount") is None:
        pytest.skip("no tmpfs here")
    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up_keeps_the_checkpoint_before(host, folder: Folder, small_disk) -> None:
    """Room for three checkpoints and a half; with keep=9 the fourth does not fit beside the others."""
    assert host.run(folder("measured"), "trainer.max_steps=1") == 0
    kib = (folder("measured") / "checkpoints/last.pt").stat().st_size // 1024
    assert kib == pytest.approx(1.1 * 1024, rel=0.25)  # what the next test is told before training
    run_dir = small_disk(kib * 7 // 2) / "runs" / "day" / "run"
    assert host.run(run_dir, "trainer.epochs=3", "checkpoint.keep=9") == 1
    assert "No space left" in host.refusal or "failed writing" in host.refusal
    assert "last.pt: cannot be written" in host.refusal
    assert "the file before it is whole" in host.refusal
    saved = files.load(run_dir / "checkpoints/last.pt")["loop"]["step"]
    assert saved == 3
    assert not list(run_dir.rglob(".*.tmp"))
    for numbered in run_dir.glob("checkpoints/step-*.pt"):
        numbered.unlink()
    more = ["trainer.max_steps=5", "trainer.epochs=3", "checkpoint.keep=0", "resume=auto"]
    assert host.run(run_dir, *more) == 0, host.refusal
    assert files.load(run_dir / "checkpoints/last.pt")["loop"]["step"] == 5


def test_a_disk_without_room_for_one_checkpoint_is_refused_before_training(host, small_disk) -> None:
    run_dir = small_disk(600) / "runs" / "day" / "run"
    assert host.run(run_dir) == 1
    assert "a checkpoint takes about 1.1 MiB, 0.6 MiB are free" in host.refusal
    assert not list(run_dir.glob("checkpoints/*")) + list(run_dir.glob("metrics.jsonl"))


@pytest.mark.parametrize("kib_left", [0, 4, 12])
def test_a_disk_that_is_full_already_is_told_without_a_traceback(small_disk, kib_left: int) -> None:
    """Nor by the log, which lies there too."""
    place = small_disk(64)
    (place / "everything").write_bytes(bytes(2**10 * (64 - kib_left)))
    command = [sys.executable, "-m", "rfdetr_train", "model=tiny", f"run_dir={place / 'runs'}"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 1
    assert "ERROR" in answer.stderr + answer.stdout
    assert "Traceback" not in answer.stderr + answer.stdout


@pytest.mark.parametrize("removed", ["run", "run/checkpoints"])
def test_a_folder_that_goes_away_ends_the_run(host, folder: Folder, removed: str) -> None:
    run_dir = folder("a")
    host.start(run_dir, "trainer.epochs=500", "evaluation.every_epochs=1000")
    wait_for(run_dir / "checkpoints" / "last.pt")
    shutil.rmtree(run_dir.parent / removed, ignore_errors=True)
    assert host.wait() == 1
    assert "No such file or directory" in host.refusal or "has been removed" in host.refusal


def test_a_disk_that_cannot_be_written_is_said(host, small_disk) -> None:
    run_dir = small_disk(9000) / "runs" / "day" / "run"
    assert host.run(run_dir, "trainer.max_steps=1") == 0
    subprocess.run(["mount", "-o", "remount,ro", str(run_dir.parents[2])], check=True)
    assert host.run(run_dir, "resume=auto") == 1
    assert "run: no writing, Read-only file system; give another folder" in host.refusal


def test_a_table_on_a_full_disk_is_told_by_the_run(tmp_path: Path) -> None:
    """Half a line at the end, of a disk that was full or a process that was killed, is dropped by the next writer."""
    metrics = MetricsFiles(tmp_path)
    metrics.log({"split": "train", "step": 1, "loss": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"split": "train", "ste')
    again = MetricsFiles(tmp_path)
    again.log({"split": "train", "step": 2, "loss": 0.25})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
