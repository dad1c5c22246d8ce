"""Workers live as long as the process that reads from them, whatever signals fly about."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch.utils.data
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from rfdetr_train.config import ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.loader import evaluation_batches
from rfdetr_train.data.workers import death_explained
from rfdetr_train.errors import UserError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # machines with one core
    pytest.mark.skipif(sys.platform == "win32", reason="process groups and SIGKILL are POSIX"),
]

READER = """
import multiprocessing, os, signal, sys
from rfdetr_train.config import AugmentationConfig, ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.errors import STOP_SIGNALS

if __name__ == "__main__":
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: None)  # SIG_IGN would pass to its children
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
    command = [sys.executable, str(script), str(tmp_path / "shapes")]
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_workers_serve_on_when_their_whole_group_is_told_to_end(reader, number: signal.Signals):
    workers = workers_of(reader)
    family = psutil.Process(reader.pid).children(recursive=True)
    os.killpg(reader.pid, number)
    time.sleep(0.3)
    assert len(family) == 4  # with the server that forks them, and multiprocessing's count of semaphores
    assert [process for process in family if process.status() == psutil.STATUS_ZOMBIE] == []
    output, _ = reader.communicate("\n", timeout=60)
    assert output.split() == ["10", "11"]
    assert reader.returncode == 0
    assert all_end(workers)


def test_workers_end_when_their_reader_is_killed(reader):
    workers = workers_of(reader)
    os.kill(reader.pid, signal.SIGKILL)
    assert all_end(workers)


def test_a_worker_that_is_stuck_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = read_dataset(ShapesDataConfig(root=str(tmp_path), train_images=1, valid_images=2, image_size_px=64))
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)  # seconds that torch waits for it
    batches = evaluation_batches(dataset.splits["valid"], 32, batch_size=1, num_workers=2)
    next(batches)
    for worker in multiprocessing.active_children():
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
    batches.close()
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = read_dataset(ShapesDataConfig(root=str(tmp_path), train_images=1, valid_images=12, image_size_px=64))
    seconds_between_checks = (0.5,)  # torch looks every 5 s
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", seconds_between_checks)
    batches = evaluation_batches(dataset.splits["valid"], 32, batch_size=1, num_workers=2)
    next(batches)
    for worker in multiprocessing.active_children():
        worker.kill()
    with pytest.raises(UserError, match=r"was killed, most likely because memory ran out.*lower data\.num_workers"):
        list(batches)
    assert multiprocessing.active_children() == []


SMALL_MEMORY = """
import resource, sys
from rfdetr_train.config import ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.loader import evaluation_batches
from rfdetr_train.errors import UserError

if __name__ == "__main__":
    split = read_dataset(ShapesDataConfig(root=sys.argv[1], train_images=1, valid_images=4)).splits["valid"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))  # holds for shared memory, which is files too
    try:
        list(evaluation_batches(split, 512, batch_size=2, num_workers=1))
    except UserError as error:
        print(error)
"""


def test_shared_memory_that_is_too_small_is_explained(tmp_path: Path):
    """Torch's own way ends in waiting for ever."""
    script = tmp_path / "small_memory.py"
    script.write_text(SMALL_MEMORY)
    command = [sys.executable, str(script), str(tmp_path / "shapes")]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "a batch of 1.6 MB does not fit into shared memory" in output
    assert "--shm-size" in output


def test_other_errors_pass(tmp_path: Path):
    with pytest.raises(RuntimeError, match="of another kind"), death_explained():
        raise RuntimeError("of another kind")
