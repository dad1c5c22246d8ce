"""How long a run is, in steps; epochs become steps here and nowhere else."""

from dataclasses import dataclass

from rfdetr_train.config import LinearWarmupConfig, WarmupConfig
from rfdetr_train.errors import require


@dataclass(frozen=True)
class RunLength:
    """The two numbers that schedules are made of."""

    steps_per_epoch: int
    total_steps: int

    @classmethod
    def of(cls, steps_per_epoch: int, epochs: int, max_steps: int | None) -> "RunLength":
        """`max_steps` ends a run, and its schedule, that `epochs` would make longer."""
        total = steps_per_epoch * epochs
        return cls(steps_per_epoch, total if max_steps is None else min(total, max_steps))

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
