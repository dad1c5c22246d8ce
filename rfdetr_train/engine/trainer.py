"""The run over time: epochs of steps, evaluations between them, saves where they are due."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rfdetr_train import distributed
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.sample import Batch
from rfdetr_train.data.transforms import normalise
from rfdetr_train.engine.course import Course, LoopState, Stage
from rfdetr_train.engine.recorder import Recorder
from rfdetr_train.engine.run import Run
from rfdetr_train.engine.saver import Saver
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.engine.step import TrainStep, count_targets
from rfdetr_train.engine.step_watch import StepWatch
from rfdetr_train.engine.validator import Validator
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

IsHopeless = Callable[[int, float | None], bool]
"""Told the number of epochs and the AP after an evaluation: whether to go on is a waste."""


def never(epochs: int, ap: float | None) -> bool:
    """No run is hopeless."""
    return False


@dataclass
class Trainer:
    """Runs a run forward to the end of training."""

    run: Run
    step: TrainStep
    watch: StepWatch
    loader: TrainLoader
    validator: Validator
    recorder: Recorder
    saver: Saver
    signals: StopSignals
    is_hopeless: IsHopeless = never
    """Asked after each evaluation but the last; it ends the run."""

    def __post_init__(self) -> None:
        self.state: LoopState = self.run.loop
        self.course = Course(self.state, self.run.length, self.run.config.evaluation.every_epochs)

    def fit(self) -> None:
        """Train until the epochs, `max_steps` or early stopping end it; `Interrupted` after a signal, once saved."""
        state, course = self.state, self.course
        if course.stage is Stage.ENDED:
            place = f"epoch {state.epoch} of {course.length.epochs}, step {state.step}"
            log.warning("nothing left to train: the run stands at %s; raise %s to go on", place, course.ended_by)
        while course.stage is not Stage.ENDED:
            self.recorder.start_epoch(state, course.length.epochs)
            if course.stage is Stage.STEPS:
                self._train_epoch()
                self._close_epoch()
            evaluated = course.evaluation_due
            if evaluated:
                self._evaluate()
            self._enter_next_epoch()
            self.recorder.epoch_done(state, evaluated)
            distributed.meet()  # the main process has drawn and written meanwhile
            self.signals.raise_if_received()

    # ----------------------------------------------------------------------------------------------------------- steps
    def _train_epoch(self) -> None:
        if self.run.optimization.enter_epoch(self.state.epoch):
            self.step.parameters_changed()
        for window in self.loader.epoch(self.state.epoch, self.state.position):
            self.recorder.batch_comes(window[0])
            save_due = self._train_step(window)
            if not self.course.steps_left:
                break
            if self.signals.received is not None or save_due:
                self.saver.save(self.state.step)
                distributed.meet()
            self.signals.raise_if_received()

    def _train_step(self, window: list[Batch]) -> bool:
        """One step; whether a save is due after it."""
        state, scheduler = self.state, self.run.optimization.scheduler
        rates = scheduler.last_lr
        distributed.draw_own_numbers(self.run.config.seed, state.step)
        num_targets, save_due = self._exchange(window)
        self.watch.begin()
        result = self.step(window, num_targets, measure_groups=bool(self.recorder.measures_step(state)))
        self.watch.look(window, result)
        if not result.skipped:
            self.run.average.step_done()
        scheduler.step()
        state.step += 1
        state.position += 1
        self.recorder.step_done(state, result, rates, scale_px=window[0].images.shape[-2])
        return save_due

    def _exchange(self, window: list[Batch]) -> tuple[float, bool]:
        """All that the processes tell each other before a step, in one exchange: how many targets it has, whether a
        save is due after it, which the main process decides, and the signals that have come."""
        save_due = bool(self.saver.due_after_step(self.state.step + 1))
        num_targets, save_votes, *signals = distributed.sums([count_targets(window), save_due, *self.signals.votes()])
        self.signals.settle(signals)
        return num_targets, save_votes > 0

    # ---------------------------------------------------------------------------------------------------- epoch's end
    def _close_epoch(self) -> None:
        """What happens once after an epoch's last step; saved before the evaluation, which may take long."""
        if self.course.epoch_complete:
            self.run.average.epoch_done(self.state.epoch)
            self.run.optimization.scheduler.epoch_end()
        self.state.evaluation_pending = True
        self.signals.agree()
        if self.course.evaluation_due:
            self.saver.save(self.state.step)
            self.signals.raise_if_received()

    def _enter_next_epoch(self) -> None:
        """Count the epoch, and save where that is due or the run is about to end."""
        state = self.state
        self.signals.agree()
        ends = self.course.is_last_epoch or state.stopped_early or self.signals.received is not None
        due = self.saver.due_after_epoch(state.epoch)
        if self.course.epoch_complete:
            state.epoch, state.position = state.epoch + 1, 0
        state.evaluation_pending = False
        if ends or state.is_best or due:
            self.saver.save(state.step, state.is_best)

    # ----------------------------------------------------------------------------------------------------- evaluation
    def _evaluate(self) -> None:
        """Score every kind of weights asked for, keep the best, stop early if nothing has got better for long."""
        state, stopping = self.state, self.run.config.trainer.early_stopping
        self.run.average.refresh_statistics(self._training_images())
        scored = [self._score(weights, model) for weights, model in self._candidates()]
        best_now = max(scored, key=lambda metrics: -1.0 if metrics["AP"] is None else metrics["AP"])
        state.scored(best_now, stopping.min_delta)
        if not self.course.is_last_epoch:
            if stopping.patience is not None and state.evaluations_without_gain >= stopping.patience:
                log.info("stopping early: AP has not risen for %d evaluations", stopping.patience)
                state.stopped_early = True
            if distributed.from_main(lambda: self.is_hopeless(state.epoch + 1, best_now["AP"])):
                log.info("stopping early: this trial is behind the others of its study")
                state.stopped_early = True
        self.run.optimization.scheduler.evaluated(best_now)

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
