"""Memory and open files over a long run.

`RFDETR_TRAIN_EPOCHS=500 pytest -s tests/faults/test_memory.py` takes minutes.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

EPOCHS = int(os.environ.get("RFDETR_TRAIN_EPOCHS", "0"))


def measured(process: int) -> tuple[int, int]:
    """(resident bytes, open files) of a process."""
    resident = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir(f"/proc/{process}/fd"))


@pytest.mark.skipif(not EPOCHS, reason="takes minutes: RFDETR_TRAIN_EPOCHS=500")
def test_neither_memory_nor_open_files_grow(host, folder: Callable[[str], Path]) -> None:
    """After a tenth of the epochs, which fill caches, to the end: less than a twentieth more, and not one file."""
    options = [f"trainer.epochs={EPOCHS}", "evaluation.every_epochs=5", "checkpoint.every_steps=1000000"]
    process = host.start(folder("a"), *options)
    samples = []
    while not (folder("a") / "summary.json").exists():
        samples.append(measured(process))
        time.sleep(0.5)
    assert host.wait() == 0
    resident, files = np.array(samples[len(samples) // 10 : -1]).T
    tenth = len(resident) // 10
    early, late = np.median(resident[:tenth]), np.median(resident[-tenth:])
    files_early, files_late = np.median(files[:tenth]), np.median(files[-tenth:])
    print(f"\n{len(samples)} samples; resident {early / 2**20:.0f} MiB, then {late / 2**20:.0f} MiB; "
          f"files {files_early:.0f}, then {files_late:.0f}, at most {files.max()}")  # fmt: skip
    assert late < 1.05 * early
    assert files_late <= files_early
