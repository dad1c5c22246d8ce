"""The run over time: epochs of steps, evaluations between them, saves where they are due."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rfdetr_train.config import EvaluationConfig, TrainerConfig
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.sample import Batch
from rfdetr_train.data.transforms import normalise
from rfdetr_train.engine.averaging import NoAverage
from rfdetr_train.engine.freezing import Freezer
from rfdetr_train.engine.loop_state import LoopState, improves
from rfdetr_train.engine.recorder import Recorder
from rfdetr_train.engine.saver import Saver
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.engine.step import TrainStep
from rfdetr_train.engine.validator import Validator
from rfdetr_train.optim.schedulers import ManagedScheduler

log = logging.getLogger(__name__)


@dataclass
class Parts:
    """What a run is made of; `commands/train.py` builds them."""

    model: nn.Module
    step: TrainStep
    scheduler: ManagedScheduler
    average: NoAverage
    freezer: Freezer
    loader: TrainLoader
    validator: Validator
    recorder: Recorder


class Trainer:
    """Runs `state` forward to the end of training."""

    def __init__(
        self,
        parts: Parts,
        state: LoopState,
        saver: Saver,
        signals: StopSignals,
        trainer_config: TrainerConfig,
        evaluation_config: EvaluationConfig,
    ) -> None:
        self.parts = parts
        self.state = state
        self.saver = saver
        self.signals = signals
        self.config = trainer_config
        self.evaluation = evaluation_config

    def fit(self) -> None:
        """Train until the epochs, `max_steps` or early stopping end it; `Interrupted` after a signal, once saved."""
        started = time.monotonic() - self.state.seconds
        if self.finished:
            log.warning(
                "nothing left to train: the run stands at epoch %d of %d, step %d; raise trainer.epochs or max_steps",
                self.state.epoch,
                self.config.epochs,
                self.state.step,
            )
        while not self.finished:
            if not self.state.evaluation_pending:
                self._train_epoch()
                self._close_epoch()
            self.state.seconds = time.monotonic() - started
            if self._evaluation_due:
                self._evaluate()
            self._next_epoch()

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return self.state.epoch >= self.config.epochs or self._out_of_steps or self.state.stopped_early

    @property
    def _out_of_steps(self) -> bool:
        done = self.config.max_steps is not None and self.state.step >= self.config.max_steps
        return done and not self.state.evaluation_pending

    # ----------------------------------------------------------------------------------------------------------- steps
    def _train_epoch(self) -> None:
        parts, state = self.parts, self.state
        parts.freezer.enter_epoch(state.epoch)
        parts.recorder.start_epoch(state.epoch, self.config.epochs, state.position, parts.loader.steps_per_epoch)
        for window in parts.loader.epoch(state.epoch, state.position):
            self._train_step(window)
            if self._out_of_steps:
                break
            self._save_if_asked()

    def _train_step(self, window: list[Batch]) -> None:
        parts, state = self.parts, self.state
        rates = parts.scheduler.last_lr
        result = parts.step(window, measure_groups=parts.recorder.measures_step(state))
        parts.average.step_done()
        parts.scheduler.step()
        state.step += 1
        state.position += 1
        parts.recorder.step_done(state, result, rates, scale_px=window[0].images.shape[-1])

    def _save_if_asked(self) -> None:
        if self.signals.received is not None or self.saver.due_after_step(self.state.step):
            self.saver.save(self.state.step)
        self.signals.raise_if_received()

    # ---------------------------------------------------------------------------------------------------- epoch's end
    def _close_epoch(self) -> None:
        """What happens once after an epoch's last step; saved before the evaluation, which may take long."""
        if self._epoch_complete:
            self.parts.average.epoch_done(self.state.epoch)
            self.parts.scheduler.epoch_end()
        self.state.evaluation_pending = True
        if self._evaluation_due:
            self.saver.save(self.state.step)
        self.signals.raise_if_received()

    @property
    def _epoch_complete(self) -> bool:
        return self.state.position == self.parts.loader.steps_per_epoch

    @property
    def _is_last_epoch(self) -> bool:
        """Whether no training follows the epoch in progress."""
        steps_done = self.config.max_steps is not None and self.state.step >= self.config.max_steps
        return steps_done or self.state.epoch + 1 >= self.config.epochs

    @property
    def _evaluation_due(self) -> bool:
        return self._is_last_epoch or (self.state.epoch + 1) % self.evaluation.every_epochs == 0

    def _next_epoch(self) -> None:
        state = self.state
        is_best = state.best is not None and state.best["step"] == state.step
        save = self._is_last_epoch or is_best or state.stopped_early or self.saver.due_after_epoch(state.epoch)
        if self._epoch_complete:
            state.epoch, state.position = state.epoch + 1, 0
        state.evaluation_pending = False
        if save or self.signals.received is not None:
            self.saver.save(state.step, is_best)
        self.signals.raise_if_received()

    # ----------------------------------------------------------------------------------------------------- evaluation
    def _evaluate(self) -> None:
        """Score every kind of weights asked for, keep the best, stop early if nothing has got better for long."""
        state = self.state
        self.parts.average.refresh_statistics(self._training_images())
        scored = [self._score(weights, model) for weights, model in self._candidates()]
        state.last = max(scored, key=lambda metrics: -1.0 if metrics["AP"] is None else metrics["AP"])
        gained = improves(state.last, state.best, self.config.early_stopping.min_delta)
        if improves(state.last, state.best):
            state.best = state.last
        state.evaluations_without_gain = 0 if gained else state.evaluations_without_gain + 1
        patience = self.config.early_stopping.patience
        if patience is not None and state.evaluations_without_gain >= patience and not self._is_last_epoch:
            log.info("stopping early: AP has not risen for %d evaluations", patience)
            state.stopped_early = True
        self.parts.scheduler.evaluated(state.last)
        self.parts.recorder.evaluation_done(state)

    def _training_images(self) -> Iterator[Tensor]:
        """One pass over the training split's normalised images; read only if an average asks for them."""
        for window in self.parts.loader.epoch(self.state.epoch):
            for batch in window:
                yield normalise(batch.to(self.parts.step.precision.device).images)

    def _candidates(self) -> list[tuple[str, nn.Module]]:
        """(name, model) of the weights to score; the average counts once it holds something."""
        averaged = self.parts.average.model
        wanted = self.evaluation.weights
        candidates = [("ema", averaged)] if averaged is not None and wanted in ("ema", "both") else []
        return candidates + ([("raw", self.parts.model)] if wanted in ("raw", "both") or not candidates else [])

    def _score(self, weights: str, model: nn.Module) -> dict[str, Any]:
        where = {"step": self.state.step, "epoch": self.state.epoch, "weights": weights}
        validation = self.parts.validator(model, on_batch=self.signals.raise_if_received)
        self.parts.recorder.scored(where, validation)
        return {**where, **validation.metrics.overall}
