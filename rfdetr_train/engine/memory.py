"""How much memory a run takes."""

import os
from pathlib import Path

import torch

STATM = Path("/proc/self/statm")  # Linux: sizes of this process in pages, the second one resident


def memory_gib(device: torch.device) -> float | None:
    """On CUDA the most that tensors have taken so far, on a CPU what this process holds; None where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if device.type == "cpu" and STATM.is_file():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
    return None
