"""The course of a run: how long it is, where it stands, what comes next. Epochs become steps here and nowhere else."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from rfdetr_train.config import LinearWarmupConfig, WarmupConfig
from rfdetr_train.errors import require


@dataclass(frozen=True)
class RunLength:
    """How long a run is by its epochs; `max_steps` ends it, and its schedule, sooner."""

    steps_per_epoch: int
    epochs: int
    max_steps: int | None = None

    @property
    def total_steps(self) -> int:
        """What schedules are made of."""
        total = self.steps_per_epoch * self.epochs
        return total if self.max_steps is None else min(total, self.max_steps)

    @property
    def num_epochs(self) -> int:
        """Epochs that the steps reach into."""
        return -(-self.total_steps // max(1, self.steps_per_epoch))

    def warmup_steps(self, config: WarmupConfig) -> int:
        """The warmup in steps; one that leaves no step at the full rate is refused."""
        if not isinstance(config, LinearWarmupConfig):
            return 0
        by_epochs = config.steps is None
        steps = round(config.epochs * self.steps_per_epoch) if config.steps is None else config.steps
        require(
            steps < self.total_steps,
            "warmup.epochs" if by_epochs else "warmup.steps",
            config.epochs if by_epochs else config.steps,
            f"is {steps} steps, the run has {self.total_steps}; shorten it, or raise trainer.epochs or max_steps",
        )
        return steps


_KINDS = {int: (int,), bool: (bool,), float: (int, float), type(None): (dict, type(None))}
"""What an entry of a checkpoint's loop may be, by its default."""


@dataclass
class LoopState:
    """Where a run stands: all that going on exactly there needs. Plain values; a checkpoint holds it as `loop`."""

    epoch: int = 0
    """Epoch in progress, from 0."""
    position: int = 0
    """Steps done in it."""
    step: int = 0
    """Steps done in the run."""
    evaluation_pending: bool = False
    """The epoch is trained, its evaluation has not finished."""
    best: dict[str, Any] | None = None
    """{step, epoch, weights, AP, AP50, ...} of the best evaluation so far."""
    last: dict[str, Any] | None = None
    """The same of the last one."""
    evaluations_without_gain: int = 0
    """Early stopping's counter."""
    stopped_early: bool = False
    """Early stopping has ended the run."""
    seconds_before: float = 0.0
    """Time spent in the runs that this one resumed from."""
    skipped_steps: int = 0
    """Steps done without changing the weights, because a loss or gradient was not finite."""
    skipped_in_a_row: int = 0
    """The last of them since a step that did."""

    def to_plain(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    def update(self, plain: dict[str, Any]) -> None:
        """Take over what `to_plain` gave, perhaps that of an older release, which counted less.

        Raises: UserError for a count that is none; the schedule, the data's order and the end of the run go by them.
        """
        for name in sorted(asdict(self).keys() & plain.keys()):
            present, value = getattr(LoopState, name), plain[name]
            fits = type(value) in _KINDS[type(present)] and (present is None or value >= 0)
            require(fits, f"loop.{name}", repr(value), "no run has written this; take an earlier checkpoint")
            setattr(self, name, value)

    def scored(self, metrics: dict[str, Any], min_delta: float) -> None:
        """An evaluation is over; one that is not better by more than `min_delta` counts against patience."""
        gained = improves(metrics, self.best, min_delta)
        self.evaluations_without_gain = 0 if gained else self.evaluations_without_gain + 1
        self.last = metrics
        if improves(metrics, self.best):
            self.best = metrics

    @property
    def is_best(self) -> bool:
        """Whether the weights of this step are those of the best evaluation."""
        return self.best is not None and self.best["step"] == self.step


def improves(metrics: dict[str, Any], best: dict[str, Any] | None, min_delta: float = 0.0) -> bool:
    """Whether `metrics["AP"]` is above the best by more than `min_delta`; an AP that does not exist is below 0."""
    if best is None:
        return True
    value, so_far = (-1.0 if m["AP"] is None else m["AP"] for m in (metrics, best))
    return value > so_far + min_delta


class Stage(Enum):
    """What a run does next."""

    STEPS = "steps of the epoch in progress"
    EVALUATION = "what follows its last step: its evaluation, if one is due, and its end"
    ENDED = "nothing"


@dataclass(frozen=True)
class Course:
    """What a run's state means for a run of this length."""

    state: LoopState
    length: RunLength
    every_epochs: int
    """Epochs between evaluations."""

    @property
    def stage(self) -> Stage:
        """What comes next."""
        if self.state.evaluation_pending:
            return Stage.EVALUATION
        return Stage.ENDED if self.ended_by else Stage.STEPS

    @property
    def ended_by(self) -> str | None:
        """Why no step follows, as the keys that would have to be raised; None while one does."""
        if self.state.stopped_early:
            return "trainer.early_stopping.patience"
        ended = not self.steps_left or self.state.epoch >= self.length.epochs
        return "trainer.epochs or trainer.max_steps" if ended else None

    @property
    def steps_left(self) -> bool:
        """Whether `max_steps` allows another step."""
        return self.length.max_steps is None or self.state.step < self.length.max_steps

    @property
    def epoch_complete(self) -> bool:
        """Whether all steps of the epoch in progress are done; `max_steps` may end it before."""
        return self.state.position >= self.length.steps_per_epoch

    @property
    def is_last_epoch(self) -> bool:
        """Whether no training follows the epoch in progress."""
        return not self.steps_left or self.state.epoch + 1 >= self.length.epochs

    @property
    def evaluation_due(self) -> bool:
        """Whether the epoch in progress ends with an evaluation; the last one always does."""
        return self.is_last_epoch or (self.state.epoch + 1) % self.every_epochs == 0
