"""Random states as a checkpoint holds them."""

import random
from pathlib import Path

import numpy as np
import torch

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.random_state import random_state, restore_random_state


def test_all_generators_go_on_where_they_were_saved(tmp_path: Path) -> None:
    files.save(tmp_path / "r.pt", {"loop": {}, "random": random_state()})
    drawn = (random.random(), random.gauss(), np.random.rand(), np.random.randn(), torch.rand(1))
    restore_random_state(files.load(tmp_path / "r.pt")["random"])
    assert drawn == (random.random(), random.gauss(), np.random.rand(), np.random.randn(), torch.rand(1))
