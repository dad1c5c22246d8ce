"""The run over time: epochs of steps, evaluations between them, saves where they are due."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from rfdetr_train import distributed
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.sample import Batch
from rfdetr_train.data.transforms import normalise
from rfdetr_train.engine.loop_state import LoopState, improves
from rfdetr_train.engine.recorder import Recorder
from rfdetr_train.engine.run import Run
from rfdetr_train.engine.saver import Saver
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.engine.step import TrainStep
from rfdetr_train.engine.step_watch import StepWatch
from rfdetr_train.engine.validator import Validator
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

IsHopeless = Callable[[int, float | None], bool]
"""Told the number of epochs and the AP after an evaluation: whether to go on is a waste."""


def never(epochs: int, ap: float | None) -> bool:
    """No run is hopeless."""
    return False


class Trainer:
    """Runs a run forward to the end of training."""

    def __init__(
        self,
        run: Run,
        step: TrainStep,
        watch: StepWatch,
        loader: TrainLoader,
        validator: Validator,
        recorder: Recorder,
        saver: Saver,
        signals: StopSignals,
        is_hopeless: IsHopeless = never,
    ) -> None:
        """`is_hopeless` is asked after each evaluation but the last, and ends the run."""
        self.run = run
        self.step = step
        self.watch = watch
        self.loader = loader
        self.validator = validator
        self.recorder = recorder
        self.saver = saver
        self.signals = signals
        self.is_hopeless = is_hopeless
        self.config = run.config.trainer
        self.state: LoopState = run.loop
        self._is_first_step = True

    def fit(self) -> None:
        """Train until the epochs, `max_steps` or early stopping end it; `Interrupted` after a signal, once saved."""
        if self._finished:
            self._say_that_nothing_is_left()
        while not self._finished:
            self.recorder.start_epoch(self.state, self.config.epochs)
            if not self.state.evaluation_pending:
                self._train_epoch()
                self._close_epoch()
            evaluated = self._evaluation_due
            if evaluated:
                self._evaluate()
            self._enter_next_epoch()
            self.recorder.epoch_done(self.state, evaluated)
            distributed.meet()  # the main process has drawn and written meanwhile
            self.signals.raise_if_received()

    @property
    def _finished(self) -> bool:
        state = self.state
        ended = state.epoch >= self.config.epochs or not self._steps_left or state.stopped_early
        return ended and not state.evaluation_pending

    @property
    def _steps_left(self) -> bool:
        return self.config.max_steps is None or self.state.step < self.config.max_steps

    def _say_that_nothing_is_left(self) -> None:
        remedy = (
            "trainer.early_stopping.patience" if self.state.stopped_early else "trainer.epochs or trainer.max_steps"
        )
        place = f"epoch {self.state.epoch} of {self.config.epochs}, step {self.state.step}"
        log.warning("nothing left to train: the run stands at %s; raise %s to go on", place, remedy)

    # ----------------------------------------------------------------------------------------------------------- steps
    def _train_epoch(self) -> None:
        if self.run.optimization.unfreezer.enter_epoch(self.state.epoch):
            self.step.parameters_changed()
        for window in self.loader.epoch(self.state.epoch, self.state.position):
            if self._is_first_step:
                self.recorder.first_batch(window[0])
                self._is_first_step = False
            save_due = self._train_step(window)
            if not self._steps_left:
                break
            if self.signals.received is not None or save_due:
                self.saver.save(self.state.step)
                distributed.meet()
            self.signals.raise_if_received()

    def _train_step(self, window: list[Batch]) -> bool:
        """One step; whether a save is due after it, which the main process decides."""
        scheduler = self.run.optimization.scheduler
        rates = scheduler.last_lr
        distributed.draw_own_numbers(self.run.config.seed, self.state.step)
        votes = [*self.signals.votes(), float(bool(self.saver.due_after_step(self.state.step + 1)))]
        result = self.step(window, measure_groups=bool(self.recorder.measures_step(self.state)), votes=votes)
        *signals, save_due = result.votes
        self.signals.settle(signals)
        self.watch.look(window, result)
        if not result.skipped:
            self.run.average.step_done()
        scheduler.step()
        self.state.step += 1
        self.state.position += 1
        self.recorder.step_done(self.state, result, rates, scale_px=window[0].images.shape[-2])
        return save_due > 0

    # ---------------------------------------------------------------------------------------------------- epoch's end
    def _close_epoch(self) -> None:
        """What happens once after an epoch's last step; saved before the evaluation, which may take long."""
        if self._epoch_complete:
            self.run.average.epoch_done(self.state.epoch)
            self.run.optimization.scheduler.epoch_end()
        self.state.evaluation_pending = True
        self.signals.agree()
        if self._evaluation_due:
            self.saver.save(self.state.step)
            self.signals.raise_if_received()

    @property
    def _epoch_complete(self) -> bool:
        return self.state.position >= self.loader.steps_per_epoch

    @property
    def _is_last_epoch(self) -> bool:
        """Whether no training follows the epoch in progress."""
        return not self._steps_left or self.state.epoch + 1 >= self.config.epochs

    @property
    def _evaluation_due(self) -> bool:
        return self._is_last_epoch or (self.state.epoch + 1) % self.run.config.evaluation.every_epochs == 0

    def _enter_next_epoch(self) -> None:
        """Count the epoch, and save where that is due or the run is about to end."""
        state = self.state
        self.signals.agree()
        is_best = state.best is not None and state.best["step"] == state.step
        ends = self._is_last_epoch or state.stopped_early or self.signals.received is not None
        due = self.saver.due_after_epoch(state.epoch)
        if self._epoch_complete:
            state.epoch, state.position = state.epoch + 1, 0
        state.evaluation_pending = False
        if ends or is_best or due:
            self.saver.save(state.step, is_best)

    # ----------------------------------------------------------------------------------------------------- evaluation
    def _evaluate(self) -> None:
        """Score every kind of weights asked for, keep the best, stop early if nothing has got better for long."""
        state = self.state
        self.run.average.refresh_statistics(self._training_images())
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
        ap = state.last["AP"]
        if not self._is_last_epoch and distributed.from_main(lambda: self.is_hopeless(state.epoch + 1, ap)):
            log.info("stopping early: this trial is behind the others of its study")
            state.stopped_early = True
        self.run.optimization.scheduler.evaluated(state.last)

    def _candidates(self) -> list[tuple[str, nn.Module]]:
        """(name, model) of the weights to score; the average counts once it holds something."""
        averaged = self.run.average.model
        wanted = self.run.config.evaluation.weights
        candidates: list[tuple[str, nn.Module]] = []
        if averaged is not None and wanted in ("ema", "both"):
            candidates.append(("ema", averaged))
        if wanted in ("raw", "both") or not candidates:
            candidates.append(("raw", self.run.model))
        return candidates

    def _score(self, weights: str, model: nn.Module) -> dict[str, Any]:
        where = {"step": self.state.step, "epoch": self.state.epoch, "weights": weights}
        try:
            validation = self.validator(model, on_batch=self.signals.raise_if_noted_anywhere)
        except UserError as error:
            raise self.watch.explain(error) from error
        self.recorder.scored(where, validation)
        return {**where, **validation.metrics.overall}

    def _training_images(self) -> Iterator[Tensor]:
        """One pass over the training split's normalised images; read only if an average asks for them."""
        for window in self.loader.epoch(self.state.epoch):
            for batch in window:
                if len(batch.images):
                    yield normalise(batch.to(self.run.precision.device).images, self.run.config.model.input_channels)
