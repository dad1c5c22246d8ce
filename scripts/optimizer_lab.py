"""What optimizers and schedules do, worked by hand beside torch: python scripts/optimizer_lab.py (seconds on a CPU).

Each experiment is a function that returns measurements; the table shows them beside what they should be, and the tests
assert them. Everything is float64 where it is compared with hand calculation.
"""

import copy
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from lab_parts import (
    Update,
    adamw_update,
    largest_gap,
    loss_of,
    make_network,
    momentum_update,
    sign_momentum_update,
    train,
    velocity_update,
)
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rfdetr_train.config import CosineScheduleConfig
from rfdetr_train.optim.algorithms import Lion
from rfdetr_train.optim.schedules import build_schedule

PEAK, WARMUP_STEPS, TOTAL_STEPS, FLOOR = 3e-3, 40, 800, 0.1


class Row(NamedTuple):
    """One line of the table."""

    experiment: str
    measured: float
    wanted: str
    holds: bool


def below(experiment: str, measured: float, limit: float) -> Row:
    return Row(experiment, measured, f"< {limit:g}", measured < limit)


def above(experiment: str, measured: float, limit: float) -> Row:
    return Row(experiment, measured, f"> {limit:g}", measured > limit)


def near(experiment: str, measured: float, wanted: float, tolerance: float) -> Row:
    return Row(experiment, measured, f"{wanted:g}", abs(measured - wanted) <= tolerance)


# ------------------------------------------------------------------------------------------------- updates by hand
def gap_on_a_quartic(update: Update, make: Callable[[list[Tensor]], Optimizer], drop_at: int, steps: int = 40) -> float:
    """Largest gap to torch on w^4 / 4 + w from w = 1, with the rate divided by 10 at step `drop_at`."""
    parameter = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = make([parameter])
    weight, state, gap = 1.0, {}, 0.0
    for step in range(steps):
        lr = 0.05 if step < drop_at else 0.005
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = parameter.detach() ** 3 + 1.0
        optimizer.step()
        weight = update(weight, weight**3 + 1.0, lr, state)
        gap = max(gap, abs(weight - parameter.item()))
    return gap


def momentum_rows() -> list[Row]:
    plain = lambda params: SGD(params, momentum=0.9)  # noqa: E731
    nesterov = lambda params: SGD(params, momentum=0.9, nesterov=True)  # noqa: E731
    return [
        below("SGD momentum by hand, gap to torch", gap_on_a_quartic(momentum_update(False), plain, 20), 1e-14),
        below("SGD Nesterov by hand, gap to torch", gap_on_a_quartic(momentum_update(True), nesterov, 20), 1e-14),
        below("velocity form, constant rate, gap", gap_on_a_quartic(velocity_update, plain, 40), 1e-14),
        above("velocity form, rate drops at step 20, gap", gap_on_a_quartic(velocity_update, plain, 20), 1e-3),
        below(
            "AdamW by hand, gap to torch",
            gap_on_a_quartic(adamw_update, lambda p: AdamW(p, weight_decay=0.1), 20),
            1e-12,
        ),
    ]


# ---------------------------------------------------------------------------------------------------- weight decay
def shrinkage(optimizer_class: type[Optimizer], decay: float, steps: int = 5, lr: float = 1e-2) -> float:
    """How much a weight of 1 loses over steps with gradient 0."""
    parameter = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = optimizer_class([parameter], lr=lr, weight_decay=decay)  # type: ignore[call-arg]
    for _ in range(steps):
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return 1.0 - parameter.item()


def decay_rows() -> list[Row]:
    return [
        near("Adam + L2 0.1, shrinkage in 5 steps at 1e-2", shrinkage(Adam, 0.1), 0.04995, 5e-5),
        near("Adam + L2 0.01: the same, whatever the decay", shrinkage(Adam, 0.01), 0.04995, 5e-5),
        near("AdamW 0.1: lr x decay a step", shrinkage(AdamW, 0.1), 0.00499, 5e-6),
        *_group_rows(),
    ]


def _group_rows() -> list[Row]:
    """Decay for all takes the gains of LayerNorm down with the matrices; decay groups leave them."""
    gains = {}
    for everything in (True, False):
        network = make_network()
        vectors = [p for p in network.parameters() if p.ndim < 2]
        matrices = [p for p in network.parameters() if p.ndim >= 2]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 1.0 if everything else 0.0}]
        train(network, AdamW(groups, lr=1e-2, weight_decay=1.0), steps=100)
        gains[everything] = network[1].weight.mean().item()
    return [
        below("mean LayerNorm gain after 100 steps, decay 1.0 for all", gains[True], 0.75),
        above("the same, decay for matrices only", gains[False], 0.85),
    ]


# -------------------------------------------------------------------------------------------------------- schedules
def warmup_cosine_rows() -> list[Row]:
    schedule = _schedule()
    wanted = {0: 7.5e-5, 39: 3e-3, 40: 3e-3, 420: 1.65e-3, 800: 3e-4}
    rows = [near(f"warmup-cosine, step {step}", PEAK * schedule(step), lr, 1e-12) for step, lr in wanted.items()]
    exact, late = (_sequential_trace(total_iters) for total_iters in (WARMUP_STEPS - 1, WARMUP_STEPS))
    ours = [PEAK * schedule(step) for step in range(TOTAL_STEPS + 1)]
    return [
        *rows,
        below(
            "SequentialLR, total_iters = W - 1, gap", max(abs(a - b) for a, b in zip(exact, ours, strict=True)), 1e-9
        ),
        below("SequentialLR, total_iters = W, rate of step W - 1 (peak 0.003)", late[WARMUP_STEPS - 1], PEAK * 0.98),
    ]


def _schedule() -> Callable[[int], float]:
    config = CosineScheduleConfig(min_factor=FLOOR)
    schedule = build_schedule(config, warmup_steps=WARMUP_STEPS, total_steps=TOTAL_STEPS, steps_per_epoch=1)
    assert schedule is not None
    return schedule


def _sequential_trace(total_iters: int) -> list[float]:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=PEAK)
    warm = LinearLR(optimizer, 1 / WARMUP_STEPS, total_iters=total_iters)
    length = TOTAL_STEPS - WARMUP_STEPS
    cosine = LambdaLR(optimizer, lambda t: FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * t / length)) / 2)
    scheduler = SequentialLR(optimizer, [warm, cosine], [WARMUP_STEPS])
    rates = []
    for _ in range(TOTAL_STEPS + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


# ----------------------------------------------------------------------------------------------------------- resume
def resume_rows() -> list[Row]:
    """60 steps, against 30, a state dict, and 30; then the same with the scheduler's state forgotten."""
    whole, _ = _resumed(stop=None, keep_schedule=True)
    again, _ = _resumed(stop=30, keep_schedule=True)
    bug, lr = _resumed(stop=30, keep_schedule=False)
    return [
        Row("resume from state dicts, gap", largest_gap(whole, again), "0", largest_gap(whole, again) == 0.0),
        near("scheduler rebuilt without its state: rate of step 30", lr, PEAK / WARMUP_STEPS, 1e-12),
        above("and the gap that this restarted warmup leaves", largest_gap(whole, bug), 1e-3),
    ]


def _resumed(stop: int | None, keep_schedule: bool) -> tuple[nn.Module, float]:
    """The network after 60 steps, and the rate used at `stop`."""
    network = make_network()
    optimizer, scheduler = _optimizer_and_scheduler(network)
    lr = 0.0
    for step in range(60):
        if step == stop:
            states = copy.deepcopy((network.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
            network = make_network()
            optimizer, scheduler = _optimizer_and_scheduler(network)
            network.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
            if keep_schedule:
                scheduler.load_state_dict(states[2])
            else:
                scheduler = LambdaLR(optimizer, _schedule())
            lr = optimizer.param_groups[0]["lr"]
        train(network, optimizer, steps=1, first=step)
        scheduler.step()
    return network, lr


def _optimizer_and_scheduler(network: nn.Module) -> tuple[Optimizer, LambdaLR]:
    optimizer = AdamW(network.parameters(), lr=PEAK)
    return optimizer, LambdaLR(optimizer, _schedule())


# ------------------------------------------------------------------------------------------------ from scratch
def lockstep_gap(update: Update, make: Callable[[Iterable[Tensor]], Optimizer], steps: int = 50) -> float:
    """Two copies of the network, one trained by `update` number by number, one by an optimizer: the largest gap."""
    by_hand, by_class = make_network(), make_network()
    optimizer = make(by_class.parameters())
    states = [[{} for _ in range(p.numel())] for p in by_hand.parameters()]
    gap = 0.0
    for step in range(steps):
        by_hand.zero_grad()
        loss_of(by_hand, step).backward()
        for parameter, state in zip(by_hand.parameters(), states, strict=True):
            pairs = zip(parameter.flatten().tolist(), parameter.grad.flatten().tolist(), state, strict=True)
            values = [update(weight, grad, 1e-2, one) for weight, grad, one in pairs]
            parameter.data = torch.tensor(values, dtype=parameter.dtype).view_as(parameter)
        train(by_class, optimizer, steps=1, first=step)
        gap = max(gap, largest_gap(by_hand, by_class))
    return gap


def lockstep_rows() -> list[Row]:
    count = sum(p.numel() for p in make_network().parameters())
    makers: dict[str, tuple[Update, Callable[[Iterable[Tensor]], Optimizer]]] = {
        "SGD": (momentum_update(False), lambda p: SGD(p, lr=1e-2, momentum=0.9)),
        "AdamW": (adamw_update, lambda p: AdamW(p, lr=1e-2, weight_decay=0.1)),
        "sign-momentum": (sign_momentum_update, lambda p: Lion(p, lr=1e-2, weight_decay=0.1)),
    }
    rows = [
        below(f"{name} from scratch on {count} parameters, gap in lockstep", lockstep_gap(*maker), 1e-12)
        for name, maker in makers.items()
    ]
    return rows + path_rows()


def path_rows() -> list[Row]:
    """The three implementations inside torch's AdamW, in float32."""
    networks = {}
    for path in ("for-loop", "foreach", "fused"):
        networks[path] = make_network(torch.float32)
        choice = {"foreach": path == "foreach"} if path != "fused" else {"fused": True}
        train(networks[path], AdamW(networks[path].parameters(), lr=1e-2, **choice), steps=100)
    return [
        below(f"AdamW for-loop against {path}, float32, gap", largest_gap(networks["for-loop"], networks[path]), 1e-5)
        for path in ("foreach", "fused")
    ]


# ---------------------------------------------------------------------------------------------------------- averages
def ema_rows(decay: float = 0.95, steps: int = 200) -> list[Row]:
    """EMA by hand against torch's, and what it does to a run with a large rate: the loss on points never seen."""
    network = make_network()
    optimizer = SGD(network.parameters(), lr=0.1)
    averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))
    by_hand = copy.deepcopy(network)
    for step in range(steps):
        train(network, optimizer, steps=1, first=step)
        averaged.update_parameters(network)
        for mean, parameter in zip(by_hand.parameters(), network.parameters(), strict=True):
            # The first update copies, so that the start does not count.
            mean.data = decay * mean.data + (1 - decay) * parameter.data if step else parameter.data.clone()
    with torch.no_grad():
        raw, ema = (sum(loss_of(n, 10_000 + i).item() for i in range(100)) / 100 for n in (network, by_hand))
    return [
        below(f"EMA {decay} by hand, gap to torch", largest_gap(by_hand, averaged.module), 1e-12),
        below("held-out loss of the average over that of the raw weights", ema / raw, 1.0),
    ]


EXPERIMENTS = {
    "Momentum and AdamW by hand": momentum_rows,
    "Weight decay": decay_rows,
    "Warmup and cosine": warmup_cosine_rows,
    "Resume": resume_rows,
    "From scratch, in lockstep": lockstep_rows,
    "Averaged weights": ema_rows,
}


def main() -> None:
    table = Table("experiment", "measured", "wanted", "", title="Optimizer lab")
    for title, experiment in EXPERIMENTS.items():
        table.add_section()
        table.add_row(f"[bold]{title}[/bold]")
        for row in experiment():
            table.add_row(
                row.experiment, f"{row.measured:.6g}", row.wanted, "holds" if row.holds else "[red]FAILS[/red]"
            )
    Console().print(table)


if __name__ == "__main__":
    main()
