"""Learning-rate schedules as pure functions of the step: factors on each parameter group's own initial rate.

Steps are optimizer steps counted from 0; T is `total_steps`, W is `warmup_steps`, so step t of a run is one of 0..T-1.
Warmup: step w < W uses (w + 1) / W of the rate, hence step 0 never 0 and step W - 1 all of it. The shapes run over the
progress p = (t - W) / (T - W), 0 at step W and 1 at T: the floor belongs to index T, the step just after the last.
"""

import math
from collections.abc import Callable
from typing import Any

from rfdetr_train.config import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    FlatCosineScheduleConfig,
    LinearScheduleConfig,
    PolynomialScheduleConfig,
    SchedulerConfig,
    StepScheduleConfig,
    WSDScheduleConfig,
)
from rfdetr_train.errors import UserError

Schedule = Callable[[int], float]
"""Step index -> factor on the initial rate."""


def warmup(step: int, warmup_steps: int) -> float:
    """(step + 1) / W during warmup, 1 afterwards."""
    return min((step + 1) / warmup_steps, 1.0) if warmup_steps else 1.0


def half_cosine(progress: float) -> float:
    """From 1 to 0 (SGDR, arXiv 1608.03983, without restarts)."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def tail(progress: float, fraction: float) -> float:
    """Progress inside the last `fraction` of the way: 0 before it; 1 at the end, also where the fraction is 0."""
    if progress >= 1.0:
        return 1.0
    return max(0.0, 1.0 - (1.0 - progress) / fraction) if fraction > 0.0 else 0.0


SHAPES: dict[type, Callable[[Any, float], float]] = {
    CosineScheduleConfig: lambda config, progress: half_cosine(progress),
    LinearScheduleConfig: lambda config, progress: 1.0 - progress,
    PolynomialScheduleConfig: lambda config, progress: (1.0 - progress) ** config.power,
    WSDScheduleConfig: lambda config, progress: 1.0 - tail(progress, config.decay_fraction),
    FlatCosineScheduleConfig: lambda config, progress: half_cosine(tail(progress, 1.0 - config.flat_fraction)),
}
"""Config and progress in 0..1 -> height over the floor, from 1 to 0."""


def build_schedule(
    config: SchedulerConfig, *, warmup_steps: int, total_steps: int, steps_per_epoch: int
) -> Schedule | None:
    """The config's preset with its warmup, as a function of the step; None for a config that is no preset.

    Drops of the step preset are counted from the start of the run, warmup included. Raises UserError for W >= T.
    """
    body = _body(config, warmup_steps, total_steps, steps_per_epoch)
    if body is None:
        return None
    check_warmup(warmup_steps, total_steps)

    def schedule(step: int) -> float:
        return warmup(step, warmup_steps) if step < warmup_steps else body(step)

    return schedule


def check_warmup(warmup_steps: int, total_steps: int) -> None:
    """Refuse a warmup that would leave no step of the schedule."""
    if warmup_steps >= total_steps:
        raise UserError(
            f"warmup.steps={warmup_steps}: must be below the {total_steps} steps of the run; "
            "shorten the warmup or raise trainer.epochs or trainer.max_steps"
        )


def _body(config: SchedulerConfig, warmup_steps: int, total_steps: int, steps_per_epoch: int) -> Schedule | None:
    """The schedule from step W on."""
    if isinstance(config, ConstantScheduleConfig):
        return lambda step: 1.0
    if isinstance(config, StepScheduleConfig):
        drop_steps = [round(epoch * steps_per_epoch) for epoch in config.drop_epochs]
        return lambda step: config.factor ** sum(step >= drop for drop in drop_steps)
    shape = SHAPES.get(type(config))
    if shape is None:
        return None
    floor = config.min_factor  # type: ignore[attr-defined]  # every config with a shape has it

    def body(step: int) -> float:
        progress = min((step - warmup_steps) / (total_steps - warmup_steps), 1.0)
        return floor + (1.0 - floor) * shape(config, progress)

    return body
