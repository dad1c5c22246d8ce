"""The memory of this process, against the system's own account."""

import mmap
import resource

import numpy as np
import pytest
import torch

from rfdetr_train.engine.memory import STATM, memory_gib


@pytest.mark.skipif(not STATM.is_file(), reason="only Linux tells what a process holds")
def test_it_grows_by_what_is_held_and_stays_below_the_peak():
    before = memory_gib(torch.device("cpu"))
    held = np.frombuffer(mmap.mmap(-1, 2**27), dtype=np.uint8)  # an eighth of a GiB, past any allocator
    held[:] = 1
    after = memory_gib(torch.device("cpu"))
    assert after - before == pytest.approx(0.125, abs=0.02)
    assert after <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 + 0.02
    assert held[-1] == 1


def test_unknown_devices_have_none():
    assert memory_gib(torch.device("mps")) is None
