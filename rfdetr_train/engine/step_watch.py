"""What is done about steps whose loss or gradient is not finite, and about losses that jump.

Such a step has changed neither weights nor optimizer, and does not enter the average. It counts as a step all the same:
data and schedule move on, so that the step stays the one clock, and a resumed run meets the same pictures.
"""

import logging
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from rfdetr_train import distributed
from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.environment import random_state
from rfdetr_train.data.sample import Batch
from rfdetr_train.engine.run import Run
from rfdetr_train.engine.step import StepResult
from rfdetr_train.errors import UserError, listed

log = logging.getLogger(__name__)


class NonFiniteStep(UserError):
    """Training has diverged; no checkpoint holds a number that is not finite."""


class StepWatch:
    """Looks at the result of every step, and counts in the run's loop state."""

    def __init__(self, run: Run, class_weights: Tensor | None) -> None:
        """`class_weights` of the criterion: for the file that repeats a step."""
        self.run = run
        self.class_weights = class_weights
        self._losses: deque[float] = deque(maxlen=50)  # of the last steps
        self._skipped: Sequence[Batch] = ()  # what the last skipped step was made on
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        """Before each step: keep what the step moves on even where it changes no weight."""
        self._before = {"scaler": self.run.precision.scaler.state_dict(), "random": random_state()}

    def look(self, window: Sequence[Batch], result: StepResult) -> None:
        """After each step, before it is counted. Raises NonFiniteStep after trainer.max_bad_steps skipped in a row."""
        if result.skipped:
            self._count_skipped(window, result)
        else:
            self.run.loop.skipped_in_a_row = 0
            self._mark_spike(window, result.losses["loss"])

    def _count_skipped(self, window: Sequence[Batch], result: StepResult) -> None:
        loop = self.run.loop
        window = [batch for share in distributed.gather(list(window)) for batch in share if len(batch.images)]
        self._skipped = window
        self._before["pieces"] = result.pieces
        loop.skipped_steps += 1
        loop.skipped_in_a_row += 1
        log.warning("step %d is skipped: loss %s, gradient norm %s, on %s", loop.step + 1, result.losses["loss"],
                    result.grad_norm, self._names(window))  # fmt: skip
        if broken := files.nonfinite(self.run.model.state_dict()):
            self._stop(window, f"not finite are the weights themselves, {listed(broken)}")
        elif loop.skipped_in_a_row >= self.run.config.trainer.max_bad_steps:
            self._stop(window, f"{loop.skipped_in_a_row} steps in a row had a loss or gradient that is not finite")

    def explain(self, error: UserError) -> UserError:
        """Why an evaluation failed: divergence, if the steps before it were skipped; else what it says itself."""
        if not (self._skipped and self.run.loop.skipped_in_a_row):
            return error
        try:
            reason = f"{self.run.loop.skipped_in_a_row} steps were skipped; then {error}"
            self._stop(self._skipped, reason, done_before=self.run.loop.step - 1)
        except NonFiniteStep as diverged:
            return diverged

    def _stop(self, window: Sequence[Batch], reason: str, done_before: int | None = None) -> NoReturn:
        """Save the step on `window`, before which the run had made `done_before` steps, by default all that count."""
        done_before = self.run.loop.step if done_before is None else done_before
        file = self.run.folder / f"nonfinite-step-{done_before + 1}.pt"
        if distributed.is_main():
            content = self._repeatable(window)
            files.save(file, {**content, "loop": {**content["loop"], "step": done_before}})
        raise NonFiniteStep(
            f"training has diverged: {reason}; lower optimizer.lr or trainer.clip_norm, add warmup=linear, or use "
            f"trainer.precision=fp32. No checkpoint holds such numbers. See python -m rfdetr_train replay {file}"
        )

    def _repeatable(self, window: Sequence[Batch]) -> dict[str, Any]:
        """All that repeating the step on `window` needs, as a checkpoint without average and moments holds it; scaler
        and random state as they were before that step."""
        saved = self.run.to_checkpoint()
        return {
            **saved,
            **self._before,
            "ema": None,
            "optimizer": {**saved["optimizer"], "state": {}},
            "window": [{"images": batch.images, "targets": batch.targets} for batch in window],
            "pictures": self._names(window),
            "class_weights": self.class_weights,
            "precision": self.run.precision.name,
        }

    def _mark_spike(self, window: Sequence[Batch], loss: float) -> None:
        factor = self.run.config.trainer.spike_factor
        usual = median(self._losses) if len(self._losses) >= 10 else loss  # before that it says little
        if factor and loss > factor * usual:
            log.warning("step %d: the loss jumps to %.4g, the median of the last %d steps being %.4g, on %s",
                        self.run.loop.step + 1, loss, len(self._losses), usual, self._names(window))  # fmt: skip
        self._losses.append(loss)

    def _names(self, window: Sequence[Batch]) -> str:
        train = self.run.dataset.splits["train"]
        ids = [target["image_id"] for batch in window for target in batch.targets]
        return listed(train.file_names[int(np.flatnonzero(train.image_ids == image_id)[0])] for image_id in ids)
