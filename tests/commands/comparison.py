"""What two runs are compared by."""

from pathlib import Path
from typing import Any

import torch

from rfdetr_train.checkpoint import files
from rfdetr_train.loggers.files import read_metrics


def rows_without_speed(run_dir: Path) -> list[dict]:
    return [
        {k: v for k, v in row.items() if k not in ("images_per_s", "memory_gib")}
        for row in read_metrics(run_dir / "metrics.jsonl")
    ]


def equal_to_the_bit(a: Any, b: Any) -> bool:
    if torch.is_tensor(a):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal_to_the_bit(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal_to_the_bit, a, b))
    return a == b or (a != a and b != b)


def states(path: Path) -> dict[str, Any]:
    """What must be equal to the bit; not the config (it says `resume`) nor the seconds."""
    content = files.load(path)
    content["loop"].pop("seconds_before")
    return {key: content[key] for key in ("model", "ema", "optimizer", "scheduler", "scaler", "loop", "random")}
