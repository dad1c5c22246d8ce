"""What a run says while it goes on: metrics files, progress, plots."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rfdetr_train.engine.loop_state import LoopState
from rfdetr_train.engine.step import StepResult
from rfdetr_train.engine.validator import Validation
from rfdetr_train.loggers.files import MetricsFiles
from rfdetr_train.loggers.progress import Progress


class Recorder:
    """Turns steps and evaluations into rows of metrics.jsonl, bars or lines on the terminal, and pictures."""

    def __init__(
        self,
        run_dir: Path,
        progress: Progress,
        log_every_steps: int,
        group_norms: bool,
        draw: Callable[[Mapping[int, Mapping[str, Tensor]]], None],
    ) -> None:
        """`draw(detections)` writes the pictures after an evaluation."""
        self.files = MetricsFiles(run_dir)
        self.progress = progress
        self.log_every_steps = log_every_steps
        self.group_norms = group_norms
        self.draw = draw
        self.validations: dict[str, Validation] = {}
        """The newest validation of each kind of weights."""
        self._steps_of_epoch = 0
        self._images = 0
        self._since = time.perf_counter()

    def start_epoch(self, epoch: int, num_epochs: int, position: int, steps_of_epoch: int) -> None:
        """An epoch begins, or goes on after `position` steps."""
        self._steps_of_epoch = steps_of_epoch
        self._images, self._since = 0, time.perf_counter()
        self.progress.start_epoch(epoch, num_epochs, steps_of_epoch, position)

    def measures_step(self, state: LoopState) -> bool:
        """Whether the step about to be taken is to measure the norms of each group."""
        return self.group_norms and self._logs(state.step + 1, state.position + 1)

    def _logs(self, step: int, position: int) -> bool:
        return step % self.log_every_steps == 0 or position == self._steps_of_epoch

    def step_done(self, state: LoopState, result: StepResult, rates: dict[str, float], scale_px: int) -> None:
        """A step is over; `rates` are the learning rates that it used, by group."""
        self._images += result.num_images
        record = {
            "split": "train",
            "step": state.step,
            "epoch": state.epoch,
            **result.losses,
            "lr": rates,
            "grad_norm": result.grad_norm,
            **({"group_norms": result.group_norms} if result.group_norms else {}),
            "images_per_s": self._images / (time.perf_counter() - self._since),
            "scale_px": scale_px,
        }
        self.progress.step(record)
        if self._logs(state.step, state.position):
            self.files.log(record)
            self._images, self._since = 0, time.perf_counter()

    def scored(self, where: dict[str, Any], validation: Validation) -> None:
        """One kind of weights has been evaluated; `where` holds step, epoch and weights."""
        self.validations[where["weights"]] = validation
        self.files.log({"split": "valid", **where, **validation.metrics.overall})

    def evaluation_done(self, state: LoopState) -> None:
        """All kinds of weights have been evaluated."""
        assert state.last is not None
        shown = {key: state.last[key] for key in ("weights", "AP", "AP50", "AP75")}
        self.progress.end_epoch({**shown, **({"best": "so far"} if state.best is state.last else {})})
        self.draw(self.validations[state.last["weights"]].detections)
