"""Where a run stands: everything the training loop must know to go on exactly where it was."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class LoopState:
    """Counters and results, all plain values; a checkpoint holds it as `loop`."""

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
        """Take over what `to_plain` gave, perhaps that of an older release, which counted less."""
        for name in asdict(self).keys() & plain.keys():
            setattr(self, name, plain[name])


def improves(metrics: dict[str, Any], best: dict[str, Any] | None, min_delta: float = 0.0) -> bool:
    """Whether `metrics["AP"]` is above the best by more than `min_delta`; an AP that does not exist is below 0."""
    if best is None:
        return True
    value, so_far = (-1.0 if m["AP"] is None else m["AP"] for m in (metrics, best))
    return value > so_far + min_delta
