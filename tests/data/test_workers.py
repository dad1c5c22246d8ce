"""Workers live as long as the process that reads from them, whatever signals fly about."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.utils.data

from rfdetr_train.config import ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.loader import evaluation_batches

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # machines with one core
    pytest.mark.skipif(sys.platform == "win32", reason="process groups and SIGKILL are POSIX"),
]

READER = """
import multiprocessing, os, signal, sys
from rfdetr_train.config import AugmentationConfig, ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.loader import TrainLoader

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = ShapesDataConfig(root=sys.argv[1], train_images=11, valid_images=5, image_size_px=64)
    sizes = {"batch_size": 1, "accumulation_steps": 1, "seed": 0, "num_workers": 2}
    with TrainLoader(read_dataset(config).splits["train"], AugmentationConfig(name="none"), [32], **sizes) as loader:
        steps = loader.epoch(0)
        next(steps)
        print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
        input()
        print(len(list(steps)), len(list(loader.epoch(1))), flush=True)
"""


@pytest.fixture
def reader(tmp_path: Path):
    """A process group: one that has read a batch from two workers, and waits for a line before it reads the others."""
    script = tmp_path / "reader.py"
    script.write_text(READER)
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process
        process.kill()


def workers_of(reader: subprocess.Popen) -> list[int]:
    assert reader.stdout is not None
    workers = [int(pid) for pid in reader.stdout.readline().split()]
    assert len(workers) == 2
    return workers


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def all_end(workers: list[int], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, workers))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_serve_on_when_their_whole_group_is_told_to_end(reader, number: signal.Signals):
    workers = workers_of(reader)
    os.killpg(reader.pid, number)
    output, _ = reader.communicate("\n", timeout=60)
    assert output.split() == ["10", "11"]
    assert reader.returncode == 0
    assert all_end(workers)


def test_workers_end_when_their_reader_is_killed(reader):
    workers = workers_of(reader)
    os.kill(reader.pid, signal.SIGKILL)
    assert all_end(workers)


def test_a_worker_that_is_stuck_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A pipe that nobody writes to takes the place of a picture: opening it never returns."""
    dataset = read_dataset(ShapesDataConfig(root=str(tmp_path), train_images=1, valid_images=2, image_size_px=64))
    stuck = dataset.splits["valid"].path(1)
    stuck.unlink()
    os.mkfifo(stuck)
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)  # seconds that torch waits for it
    batches = evaluation_batches(dataset.splits["valid"], 32, batch_size=1, num_workers=2)
    next(batches)
    batches.close()
    assert multiprocessing.active_children() == []
