"""Learning-rate schedules and the warmup in front of them."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from rfdetr_train.config.checks import MISSING, NOT_NEGATIVE, POSITIVE, SHARE, Section, one_of
from rfdetr_train.errors import require


@dataclass
class SchedulerConfig(Section, place="scheduler"):
    """A schedule: a factor on each group's own initial rate, a pure function of the step."""

    name: str = MISSING
    """Which schedule, as in `scheduler=cosine`."""


@dataclass
class ConstantScheduleConfig(SchedulerConfig):
    """Factor 1 throughout."""

    name: str = "constant"


@dataclass
class StepScheduleConfig(SchedulerConfig):
    """The reference's schedule: the rate is multiplied by `factor` after each of the epochs in `drop_epochs`."""

    name: str = "step"
    drop_epochs: list[float] = field(default_factory=lambda: [100.0])
    """Epochs after which the rate drops."""
    factor: Annotated[float, POSITIVE] = 0.1
    """What it is multiplied by."""

    def _check(self) -> None:
        ok = self.drop_epochs == sorted(self.drop_epochs) and all(epoch > 0 for epoch in self.drop_epochs)
        require(ok, "scheduler.drop_epochs", self.drop_epochs, "give rising numbers above 0")


@dataclass
class _FloorScheduleConfig(SchedulerConfig):
    min_factor: Annotated[float, SHARE] = 0.0
    """The floor, as a share of the initial rate, reached right after the last step."""


@dataclass
class CosineScheduleConfig(_FloorScheduleConfig):
    """Half a cosine from 1 to the floor."""

    name: str = "cosine"


@dataclass
class LinearScheduleConfig(_FloorScheduleConfig):
    """A straight line from 1 to the floor."""

    name: str = "linear"


@dataclass
class PolynomialScheduleConfig(_FloorScheduleConfig):
    """(1 - progress) ** power from 1 to the floor."""

    name: str = "polynomial"
    power: Annotated[float, POSITIVE] = 2.0
    """The exponent."""


@dataclass
class WSDScheduleConfig(_FloorScheduleConfig):
    """Warmup-stable-decay (arXiv 2404.06395): 1, then a straight line to the floor in the last part of the run."""

    name: str = "wsd"
    decay_fraction: Annotated[float, SHARE] = 0.2
    """Share of the steps after warmup that decay."""


@dataclass
class FlatCosineScheduleConfig(_FloorScheduleConfig):
    """1, then half a cosine to the floor in the last part of the run."""

    name: str = "flat_cosine"
    flat_fraction: Annotated[float, SHARE] = 0.5
    """Share of the steps after warmup that stay at 1."""


@dataclass
class TorchSchedulerConfig(SchedulerConfig):
    """A torch scheduler, for example `scheduler=torch scheduler._target_=torch.optim.lr_scheduler.StepLR
    +scheduler.args.step_size=5`."""

    name: str = "torch"
    _target_: str = MISSING
    """Dotted path of a class whose first argument is the optimizer."""
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for it; a nested `_target_` builds a child scheduler."""
    interval: Annotated[str, one_of("step", "epoch", "evaluation")] = "step"
    """When it steps: step, epoch, or evaluation (ReduceLROnPlateau)."""
    monitor: str = "AP"
    """The validation metric given to it with interval=evaluation."""


@dataclass
class WarmupConfig(Section, place="warmup"):
    """A rise to the full rate in front of the schedule; `warmup=none` has none."""

    name: str = "none"
    """Which warmup, as in `warmup=linear`."""


@dataclass
class LinearWarmupConfig(WarmupConfig):
    """Step w (from 0) of W uses (w + 1) / W of each group's rate: the first is not 0, step W - 1 has all of it."""

    name: str = "linear"
    epochs: Annotated[float, NOT_NEGATIVE] = 1.0
    """Length in epochs, turned into steps once; `steps` wins over it."""
    steps: Annotated[Optional[int], NOT_NEGATIVE] = None
    """Length in steps."""
