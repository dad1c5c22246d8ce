"""The order of steps, evaluations and saves, against diaries written by hand."""

import math
import signal
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rfdetr_train.config import EarlyStoppingConfig
from rfdetr_train.data.sample import Batch
from rfdetr_train.engine.averaging import NoAverage
from rfdetr_train.engine.course import LoopState, RunLength, Stage
from rfdetr_train.engine.signals import StopSignals
from rfdetr_train.engine.step import StepResult
from rfdetr_train.engine.trainer import Trainer, never
from rfdetr_train.errors import Interrupted

BATCH = Batch(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), [{"labels": torch.zeros(2)}])


class Counting(NoAverage):
    """An average that notes what it is told."""

    def __init__(self) -> None:
        self.steps, self.epochs = 0, []

    def step_done(self) -> None:
        self.steps += 1

    def epoch_done(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Parts:
    """Everything around a trainer; `diary` holds what happened, `s` a step, `S` a save, `E` an evaluation."""

    def __init__(
        self, aps: Sequence[float | None] = (), bad_steps: Sequence[int] = (), patience: int | None = None
    ) -> None:
        self.diary: list[str] = []
        self.aps, self.bad_steps = iter(aps), bad_steps
        self.early_stopping = EarlyStoppingConfig(patience=patience)
        self.state, self.average, self.signals = LoopState(), Counting(), StopSignals()
        self.save_after: Sequence[int] = ()
        self.signal_at: int | None = None
        self.schedule = 0
        self.optimization = SimpleNamespace(
            scheduler=SimpleNamespace(
                last_lr={"a": 0.1}, step=self.count, epoch_end=lambda: None, evaluated=lambda metrics: None
            ),
            enter_epoch=lambda epoch: False,
        )

    def count(self) -> None:
        self.schedule += 1

    def windows(self, epoch: int, position: int = 0) -> Iterator[list[Batch]]:
        return iter([[BATCH]] * (3 - position))

    def step(self, window: Sequence[Batch], num_targets: float, measure_groups: bool) -> StepResult:
        assert num_targets == 2
        self.diary.append("s")
        if self.state.step + 1 == self.signal_at:
            self.signals._note(signal.SIGTERM, None)
        loss = math.nan if self.state.step + 1 in self.bad_steps else 1.0
        return StepResult({"loss": loss}, 1.0, 1)

    def validate(self, model: nn.Module, on_batch: Any) -> Any:
        self.diary.append("E")
        return SimpleNamespace(metrics=SimpleNamespace(overall={"AP": next(self.aps)}))

    def save(self, step: int, is_best: bool = False) -> None:
        assert step == self.state.step
        self.diary.append("S*" if is_best else "S")

    def trainer(self, epochs: int, max_steps: int | None = None, every: int = 1, **more: Any) -> Trainer:
        """On three steps an epoch."""
        config = SimpleNamespace(
            seed=0,
            evaluation=SimpleNamespace(every_epochs=every, weights="both"),
            trainer=SimpleNamespace(early_stopping=self.early_stopping),
        )
        ignored = SimpleNamespace(
            **dict.fromkeys(
                ("start_epoch", "batch_comes", "measures_step", "scored", "epoch_done", "begin", "look"),
                lambda *_, **__: False,
            ),
            step_done=lambda *_, **__: None,
        )
        run = SimpleNamespace(
            config=config, loop=self.state, length=RunLength(3, epochs, max_steps), model=nn.Identity(),
            optimization=self.optimization, average=self.average,
        )  # fmt: skip
        saver = SimpleNamespace(
            save=self.save, due_after_step=lambda step: step in self.save_after, due_after_epoch=lambda epoch: False
        )
        loader = SimpleNamespace(epoch=self.windows)
        parts: Any = (run, self.step, ignored, loader, self.validate, ignored, saver, self.signals)
        return Trainer(*parts, **{"is_hopeless": never, **more})


def test_two_epochs() -> None:
    """Each saves before its evaluation; a best one after it, and the last epoch in any case."""
    parts = Parts(aps=[0.5, 0.4])
    parts.trainer(epochs=2).fit()
    assert "".join(parts.diary) == "sssSES*sssSES"
    assert (parts.state.epoch, parts.state.step, parts.state.position) == (2, 6, 0)
    assert (parts.average.steps, parts.average.epochs, parts.schedule) == (6, [0, 1], 6)
    assert parts.state.best == {"step": 3, "epoch": 0, "weights": "raw", "AP": 0.5}
    assert parts.state.last is not None
    assert parts.state.last["AP"] == 0.4


def test_evaluations_are_every_second_epoch_and_at_the_end() -> None:
    parts = Parts(aps=[0.1, 0.2])
    parts.trainer(epochs=3, every=2).fit()
    assert "".join(parts.diary) == "ssssssSES*sssSES*"


def test_max_steps_cut_an_epoch_which_is_evaluated_and_no_more_follows(caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts(aps=[0.1, 0.2])
    trainer = parts.trainer(epochs=9, max_steps=4)
    trainer.fit()
    assert "".join(parts.diary) == "sssSES*sSES*"
    assert (parts.state.epoch, parts.state.position) == (1, 1)  # the second epoch would go on after its first step
    assert parts.average.epochs == [0]
    assert trainer.course.stage is Stage.ENDED
    trainer.fit()
    assert "epoch 1 of 9, step 4; raise trainer.epochs or trainer.max_steps" in caplog.text
    assert "".join(parts.diary) == "sssSES*sSES*"


def test_a_run_that_was_killed_in_an_evaluation_begins_with_it() -> None:
    parts = Parts(aps=[0.1, 0.2])
    parts.state.update({"epoch": 0, "position": 3, "step": 3, "evaluation_pending": True})
    parts.trainer(epochs=2).fit()
    assert "".join(parts.diary) == "ES*sssSES*"
    assert parts.average.epochs == [1]  # the first epoch's end had been counted


def test_a_stage_is_what_comes_next() -> None:
    parts = Parts()
    course = parts.trainer(epochs=2, max_steps=5).course
    states = [
        ({}, Stage.STEPS),
        ({"position": 3, "step": 3, "evaluation_pending": True}, Stage.EVALUATION),
        ({"epoch": 1, "position": 2, "step": 5, "evaluation_pending": True}, Stage.EVALUATION),
        ({"epoch": 1, "position": 2, "step": 5, "evaluation_pending": False}, Stage.ENDED),
        ({"epoch": 2, "position": 0, "step": 4}, Stage.ENDED),
        ({"epoch": 1, "step": 3, "stopped_early": True}, Stage.ENDED),
    ]  # fmt: skip
    for plain, stage in states:
        parts.state.update(plain)
        assert course.stage is stage


@pytest.mark.parametrize(("aps", "patience", "epochs"), [
    ([0.5, 0.4, 0.5], 2, 3),  # equal is no gain
    ([0.5, 0.4, 0.6, 0.6, 0.1], 2, 5),
    ([None, None], 1, 2),  # the first one is a gain over nothing
])  # fmt: skip
def test_patience_ends_a_run(
    aps: list[float | None], patience: int, epochs: int, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts(aps, patience=patience)
    trainer = parts.trainer(epochs=9)
    trainer.fit()
    assert (parts.state.epoch, parts.state.stopped_early) == (epochs, True)
    assert parts.diary[-1] == "S"
    trainer.fit()
    assert "raise trainer.early_stopping.patience to go on" in caplog.text


def test_a_hopeless_run_ends_and_is_not_asked_after_its_last_epoch() -> None:
    asked: list[tuple[int, float | None]] = []
    parts = Parts(aps=[0.1, 0.2])
    parts.trainer(epochs=2, is_hopeless=lambda *told: asked.append(told) is not None).fit()
    assert asked == [(1, 0.1)]
    parts = Parts(aps=[0.1, 0.2])
    parts.trainer(epochs=9, is_hopeless=lambda epoch, ap: epoch == 2).fit()
    assert parts.state.epoch == 2


def test_a_skipped_step_counts_for_the_schedule_and_not_for_the_average() -> None:
    parts = Parts(aps=[0.1], bad_steps=[2])
    parts.trainer(epochs=1).fit()
    assert (parts.state.step, parts.schedule, parts.average.steps) == (3, 3, 2)


def test_a_signal_saves_after_its_step_and_the_run_goes_on_from_there() -> None:
    parts = Parts(aps=[0.1])
    parts.save_after, parts.signal_at = [1], 2
    with pytest.raises(Interrupted) as interruption:
        parts.trainer(epochs=1).fit()
    assert interruption.value.signal_number == signal.SIGTERM
    assert "".join(parts.diary) == "sSsS"
    again = Parts(aps=[0.1])
    again.state.update(parts.state.to_plain())
    again.trainer(epochs=1).fit()
    assert "".join(again.diary) == "sSES*"


def test_a_signal_at_the_last_step_is_saved_once_and_leaves_the_evaluation_pending() -> None:
    parts = Parts()
    parts.signal_at = 3
    with pytest.raises(Interrupted):
        parts.trainer(epochs=2).fit()
    assert "".join(parts.diary) == "sssS"
    assert not parts.state.evaluation_pending  # saved amid the epoch's loop, as position 3 of 3
