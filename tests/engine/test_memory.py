"""The memory of this process, against the system's own account; the batch that fits, monotonous in the budget."""

import mmap
import resource
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rfdetr_train.config import (
    TRANSFORMER_KEYS,
    AdamWConfig,
    AugmentationConfig,
    EvaluationConfig,
    ModelConfig,
    TrainConfig,
    TrainerConfig,
)
from rfdetr_train.config.training import AveragingConfig, EmaConfig
from rfdetr_train.criterion import Criterion
from rfdetr_train.engine.memory import STATM, find_batch_size, memory_budget, memory_gib
from rfdetr_train.engine.precision import Precision
from rfdetr_train.errors import UserError
from rfdetr_train.matcher import match
from rfdetr_train.models.rfdetr import RFDETR, build_model

CPU = torch.device("cpu")


@pytest.fixture
def model(small_config: Callable[..., ModelConfig]) -> RFDETR:
    return build_model(small_config(), 3)


def batch_that_fits(model: RFDETR, gib: float, average: AveragingConfig | None = None, most: int = 10**6) -> int:
    config = TrainConfig(
        model=model.config,
        optimizer=AdamWConfig(),
        augmentation=AugmentationConfig(name="none"),
        ema=average or EmaConfig(),
        evaluation=EvaluationConfig(),
        trainer=TrainerConfig(batch_size="auto", memory_budget_gib=gib),
    )
    criterion = Criterion(model.config.num_queries, match)
    return find_batch_size(config, model, criterion, Precision("fp32", CPU), 64, most)


def test_more_memory_more_pictures(model: RFDETR) -> None:
    small, large = batch_that_fits(model, 0.1), batch_that_fits(model, 0.2)
    assert small > 1
    assert 1.9 < large / small < 2.2  # the fixed part is small here
    assert batch_that_fits(model, 0.2, most=7) == 7


def test_the_average_is_counted(model: RFDETR) -> None:
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    budget = 40 * weights / 2**30
    assert batch_that_fits(model, budget, AveragingConfig()) >= batch_that_fits(model, budget)


def test_too_little_for_one_picture_is_refused_with_both_numbers(model: RFDETR) -> None:
    with pytest.raises(UserError, match=r"one picture needs 0\.\d+ GiB, the budget is 0\.00 GiB"):
        batch_that_fits(model, 1e-4)


def test_the_model_is_left_as_it_was(small_config: Callable[..., ModelConfig]) -> None:
    """Its BatchNorms too, which would take statistics of blank pictures."""
    pyramid = small_config(**dict.fromkeys(TRANSFORMER_KEYS), backbone="test_resnet", input_channels=1)
    model = build_model(pyramid, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch_that_fits(model, 0.1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_the_free_memory_is_known_on_a_cpu() -> None:
    assert 2**24 < memory_budget(None, CPU) < 2**45
    assert memory_budget(1.5, CPU) == 1.5 * 2**30


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
