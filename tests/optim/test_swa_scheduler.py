"""SWA's rate: where it begins, how it gets there, and that it resumes."""

import copy

import pytest
import torch

from rfdetr_train.config import CosineScheduleConfig, SwaConfig
from rfdetr_train.errors import UserError
from rfdetr_train.optim.schedulers import build_scheduler
from rfdetr_train.optim.swa_scheduler import SwaScheduler


def optimizer_of() -> torch.optim.Optimizer:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": [p], "lr": lr, "group_name": n} for p, lr, n in zip(parameters, (1.0, 0.1), "ab", strict=True)]
    return torch.optim.SGD(groups, lr=1.0)


def scheduler_of(optimizer: torch.optim.Optimizer, **config: float) -> SwaScheduler:
    schedule = CosineScheduleConfig(min_factor=0.5)
    before = build_scheduler(optimizer, schedule, warmup_steps=0, total_steps=12, steps_per_epoch=2)
    return SwaScheduler(before, SwaConfig(**{"start_epoch": 2, "lr_factor": 0.2, "anneal_epochs": 2, **config}))


def trace(scheduler: SwaScheduler, optimizer: torch.optim.Optimizer, epochs: range) -> list[dict[str, float]]:
    rates = []
    for _ in epochs:
        for _ in range(2):
            rates.append(scheduler.last_lr)
            optimizer.step()
            scheduler.step()
        scheduler.epoch_end()
    return rates


def test_the_rate_moves_to_a_share_of_each_groups_initial_one() -> None:
    optimizer = optimizer_of()
    rates = trace(scheduler_of(optimizer), optimizer, range(6))
    reached = 0.5 + 0.5 * 0.75  # cosine at step 4 of 12: 1/2 + 1/2 (1 + cos(pi / 3)) / 2
    half_way = (reached + 0.2) / 2  # cosine annealing is half-way at half of its two epochs
    expected = [half_way, half_way, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]
    assert [rate["a"] for rate in rates[4:]] == pytest.approx(expected)
    assert [rate["b"] for rate in rates[4:]] == pytest.approx([rate / 10 for rate in expected])


@pytest.mark.parametrize("saved_after", range(1, 6))
def test_it_goes_on_to_the_bit(saved_after: int) -> None:
    optimizer = optimizer_of()
    scheduler = scheduler_of(optimizer)
    trace(scheduler, optimizer, range(saved_after))
    state = copy.deepcopy(scheduler.state_dict())
    twin_optimizer = optimizer_of()
    twin = scheduler_of(twin_optimizer)
    twin.load_state_dict(state)
    rest = range(6 - saved_after)
    assert trace(scheduler, optimizer, rest) == trace(twin, twin_optimizer, rest)


def test_a_resumed_run_takes_this_configs_rate_and_pace() -> None:
    """Half-way of two epochs in the file; three epochs and another rate now: after them it stands at that rate."""
    optimizer = optimizer_of()
    scheduler = scheduler_of(optimizer)
    trace(scheduler, optimizer, range(2))
    twin_optimizer = optimizer_of()
    twin = scheduler_of(twin_optimizer, anneal_epochs=3, lr_factor=0.4)
    twin.load_state_dict(copy.deepcopy(scheduler.state_dict()))
    rates = [rate["a"] for rate in trace(twin, twin_optimizer, range(4))[::2]]
    assert rates[0] == scheduler.last_lr["a"]
    assert rates[1] != pytest.approx(0.4)
    assert rates[2:] == pytest.approx([0.4, 0.4])


def test_a_state_without_swa_is_refused() -> None:
    optimizer = optimizer_of()
    with pytest.raises(UserError, match="had no SWA"):
        scheduler_of(optimizer).load_state_dict({"kind": "LambdaLR"})
