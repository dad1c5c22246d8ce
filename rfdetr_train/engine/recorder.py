"""What a run says while it goes on: metrics files, progress, plots."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rfdetr_train.data.sample import Batch
from rfdetr_train.engine.course import LoopState, RunLength
from rfdetr_train.engine.memory import memory_gib
from rfdetr_train.engine.run_plots import RunPlots
from rfdetr_train.engine.step import StepResult
from rfdetr_train.engine.validator import Validation
from rfdetr_train.loggers.files import EVALUATION_NAME, MetricsFiles, write_json
from rfdetr_train.loggers.progress import Progress
from rfdetr_train.loggers.trackers import Trackers

SHOWN_AFTER_EPOCH = ("weights", "AP", "AP50", "AP75")


@dataclass
class Recorder:
    """Turns steps and evaluations into rows of metrics.jsonl, bars or lines on the terminal, and pictures."""

    run_dir: Path
    length: RunLength
    log_every_steps: int
    group_norms: bool
    """As logger.group_norms."""
    device: torch.device
    """Whose memory is told."""
    progress: Progress
    plots: RunPlots
    trackers: Trackers

    def __post_init__(self) -> None:
        self.files = MetricsFiles(self.run_dir)
        for row in self.files.rows():  # a resumed run is whole in its trackers
            self.trackers.log(row)
        self._validations: dict[str, Validation] = {}  # by kind of weights, of the evaluation in progress
        self._has_drawn_batch = False
        self._images, self._since = 0, time.perf_counter()

    def start_epoch(self, state: LoopState, num_epochs: int) -> None:
        """The epoch in `state` begins, or goes on after `state.position` steps."""
        self._images, self._since = 0, time.perf_counter()
        self.progress.start_epoch(state.epoch, num_epochs, self.length.steps_per_epoch, state.position)

    def batch_comes(self, batch: Batch) -> None:
        """A step on `batch` follows; the first one that this process sees is drawn."""
        if not self._has_drawn_batch:
            self.plots.draw_batch(batch)
            self._has_drawn_batch = True

    def measures_step(self, state: LoopState) -> bool:
        """Whether the step about to be taken is to measure the norms of each group."""
        return self.group_norms and self._is_logged(state.step + 1, state.position + 1)

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
            "skipped_steps": state.skipped_steps,
            **({"group_norms": result.group_norms} if result.group_norms else {}),
            "images_per_s": self._images / (time.perf_counter() - self._since),
            "scale_px": scale_px,
            "memory_gib": memory_gib(self.device),
        }
        self.progress.step(record)
        if result.skipped or self._is_logged(state.step, state.position):
            self._log(record)
            self._images, self._since = 0, time.perf_counter()

    def _log(self, row: dict[str, Any]) -> None:
        self.files.log(row)
        self.trackers.log(row)

    def _is_logged(self, step: int, position: int) -> bool:
        border = step in (1, self.length.total_steps) or position == self.length.steps_per_epoch
        return border or step % self.log_every_steps == 0

    def scored(self, where: dict[str, Any], validation: Validation) -> None:
        """One kind of weights has been evaluated; `where` holds step, epoch and weights."""
        self._validations[where["weights"]] = validation
        self._log({"split": "valid", **where, **validation.metrics.overall})

    def epoch_done(self, state: LoopState, evaluated: bool) -> None:
        """An epoch is over and saved."""
        if not evaluated:
            self.progress.end_epoch({})
            return
        assert state.last is not None
        is_best = state.best == state.last
        shown = {key: state.last[key] for key in SHOWN_AFTER_EPOCH}
        self.progress.end_epoch(shown | ({"best": "so far"} if is_best else {}))
        validation = self._validations[state.last["weights"]]
        if is_best:
            write_json(self.run_dir / EVALUATION_NAME, {**state.last, **validation.to_plain()})
        sheet = self.plots.draw(validation, with_diagnosis=is_best)
        if sheet is not None:
            self.trackers.log_picture(sheet, state.step)
        self._validations = {}
