"""Runs that are killed, wherever they are, go on to the same bits; no checkpoint is ever in part.

`RFDETR_TRAIN_KILLS=50 pytest tests/faults/test_crash.py` kills fifty times at random moments.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from comparison import equal_to_the_bit, rows_without_speed, states
from filelock import FileLock

from rfdetr_train.checkpoint import files

KILLS = int(os.environ.get("RFDETR_TRAIN_KILLS", "0"))
Folder = Callable[[str], Path]


def checkpoints_of(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob("checkpoints/*.pt"))


def assert_all_readable(run_dir: Path, at_least_step: int) -> int:
    """The step of the newest checkpoint, every one being whole; a kill takes nothing of what was saved before."""
    steps = [files.load(path)["loop"]["step"] for path in checkpoints_of(run_dir)]
    newest = max(steps, default=0)
    assert newest >= at_least_step
    return newest


def assert_same(run_dir: Path, whole: Path) -> None:
    assert rows_without_speed(run_dir) == rows_without_speed(whole)
    for name in ("last.pt", "best.pt"):
        assert equal_to_the_bit(states(run_dir / "checkpoints" / name), states(whole / "checkpoints" / name))
    assert not list(run_dir.rglob(".*.tmp"))


def test_killed_while_it_writes(host, folder: Folder) -> None:
    """In the middle of a checkpoint's write, before it gets its name, between that and a link, in a link's rename."""
    options = ["trainer.epochs=2"]
    assert host.run(folder("whole"), *options) == 0
    step = 0
    for fault in ("fsync:8", "replace:7", "link:3", "fsync:13"):
        assert host.run(folder("killed"), *options, "resume=auto", fault=fault) == -signal.SIGKILL
        step = assert_all_readable(folder("killed"), step)
    assert host.run(folder("killed"), *options, "resume=auto") == 0
    assert_same(folder("killed"), folder("whole"))


@pytest.mark.skipif(not KILLS, reason="takes minutes: RFDETR_TRAIN_KILLS=50")
def test_killed_at_random_moments(host, folder: Folder) -> None:
    """Each life ends after a random time, or in a random one of its writes; in the same folder or in new ones."""
    rng = random.Random(0)
    options = ["trainer.epochs=8"]
    began = time.monotonic()
    assert host.run(folder("whole"), *options) == 0
    seconds = time.monotonic() - began
    kills, series, lives, in_writes, files_left = 0, 0, 0, 0, 0
    while kills < KILLS:
        series += 1
        run_dir, step, over = folder(f"series{series}"), 0, False
        while not over:
            lives += 1
            writes = rng.random() < 0.5
            fault = f"{rng.choice(['fsync', 'replace', 'link'])}:{rng.randint(1, 30)}" if writes else "none"
            process = host.start(run_dir, *options, "resume=auto", fault=fault)
            if not writes:
                time.sleep(rng.uniform(0.2, 0.8) * seconds)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            code = host.wait()
            assert code in (0, -signal.SIGKILL), host.refusal
            kills += code != 0
            in_writes += code != 0 and writes
            files_left += bool(list(run_dir.rglob(".*.tmp")))
            step = assert_all_readable(run_dir, step)
            over = code == 0
        assert_same(run_dir, folder("whole"))
    print(f"\n{kills} kills, {in_writes} of them in a write, {lives} lives, {series} runs, {files_left} left files")


def test_one_process_to_a_folder(host, folder: Folder) -> None:
    """The lock of a process that was killed holds nobody up."""
    run_dir = folder("a")
    run_dir.mkdir(parents=True)
    with FileLock(run_dir / ".lock"):
        assert host.run(run_dir, "trainer.max_steps=1") == 1
        assert "another process trains in it; give another folder" in host.refusal
        assert not checkpoints_of(run_dir)
    assert host.run(run_dir, "trainer.epochs=1", fault="fsync:6") == -signal.SIGKILL
    assert list(run_dir.rglob(".*.tmp"))
    assert host.run(run_dir, "trainer.epochs=1", f"resume={run_dir}") == 0
    assert not list(run_dir.rglob(".*.tmp"))


def test_leftovers_of_a_run_at_work_are_left(folder: Folder) -> None:
    from rfdetr_train.checkpoint.find_run import clear_leftovers

    temporary = folder("a") / "checkpoints" / ".last.pt.x.tmp"
    temporary.parent.mkdir(parents=True)
    temporary.touch()
    with FileLock(folder("a") / ".lock"):
        clear_leftovers(folder("a"))
        assert temporary.exists()
    clear_leftovers(folder("a"))
    assert not temporary.exists()
