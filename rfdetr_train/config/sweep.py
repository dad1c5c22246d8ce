"""The sweeper `hydra/sweeper=optuna`."""

from dataclasses import dataclass, field
from typing import Any

from rfdetr_train.config.checks import not_negative, one_of, positive


@dataclass
class OptunaSweeperConfig:
    """Its keys: `hydra.sweeper.n_trials=50`."""

    _target_: str = "hydra_plugins.rfdetr_train_optuna.OptunaSweeper"
    """The class that Hydra makes."""
    params: dict[str, Any] = field(default_factory=dict)
    """What is searched: {key: "interval(0.1, 1)", "tag(log, interval(1e-5, 1e-2))", "int(interval(1, 9))",
    "range(0, 100, 10)" or "choice(a, b)"}. On the command line: KEY=interval(0.1,1)."""
    n_trials: int = 20
    """Trials in all, pruned ones included, failed ones not; a study that is continued makes those that are missing."""
    n_jobs: int = 1
    """Trials that are launched together; they run at once under hydra/launcher=joblib and the like."""
    startup_trials: int = 10
    """Random trials before the sampler (TPE) goes by what they found."""
    seed: int = 0
    """Seed of the sampler."""
    pruner: str = "median"
    """none, median (ends a trial below the median of the earlier ones after the same epoch), or hyperband."""
    pruner_startup_trials: int = 5
    """Trials that median lets finish first."""
    pruner_warmup_epochs: int = 1
    """Epochs that every trial gets."""

    def __post_init__(self) -> None:
        positive("hydra.sweeper", self, "n_trials", "n_jobs", "pruner_warmup_epochs")
        not_negative("hydra.sweeper", self, "startup_trials", "pruner_startup_trials", "seed")
        one_of("hydra.sweeper.pruner", self.pruner, "none", "median", "hyperband")
