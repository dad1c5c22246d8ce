"""A run that takes two seconds: a detector of a few thousand weights on a dozen small pictures."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_run import SMALL_MODEL

from rfdetr_train.cli import compose_config
from rfdetr_train.commands.train import train

SMALL = [
    *SMALL_MODEL,
    "data.train_images=10", "data.valid_images=4", "data.image_size_px=64", "data.num_workers=0",
    "trainer.batch_size=4", "trainer.precision=fp32", "trainer.log_every_steps=1", "optimizer.lr=1e-3",
    "logger.sample_images=2",
]  # fmt: skip
"""Ten pictures in batches of four: three steps an epoch, the last of two pictures."""


@pytest.fixture(scope="session")
def shapes_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


@pytest.fixture
def run(shapes_root: Path, tmp_path: Path) -> Callable[..., Path]:
    """`run("name", "key=value", ...)` trains in `tmp_path/runs/day/name` and returns that folder."""

    def start(name: str, *overrides: str, **trial: Any) -> Path:
        run_dir = tmp_path / "runs" / "day" / name
        fixed = [f"data.root={shapes_root}", f"run_dir={tmp_path / 'runs'}"]
        config = compose_config("train", [*SMALL, *fixed, *overrides])
        run_dir.mkdir(parents=True, exist_ok=True)
        train(config, run_dir, **trial)
        return run_dir

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return start
