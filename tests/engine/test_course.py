"""Epochs become steps; what counts as better; what comes next."""

import math

import pytest

from rfdetr_train.config import LinearWarmupConfig, WarmupConfig
from rfdetr_train.engine.course import LoopState, RunLength, improves
from rfdetr_train.errors import UserError


@pytest.mark.parametrize(
    ("ap", "best", "min_delta", "better"),
    [
        (0.5, None, 0.1, True),
        (0.51, 0.5, 0.0, True),
        (0.51, 0.5, 0.02, False),
        (0.53, 0.5, 0.02, True),
        (None, 0.0, 0.0, False),
        (0.0, None, 0.0, True),
    ],
)
def test_better_is_above_the_best_by_more_than_min_delta(
    ap: float | None, best: float | None, min_delta: float, better: bool
) -> None:
    assert improves({"AP": ap}, None if best is None else {"AP": best}, min_delta) is better


def test_a_state_that_counted_less_is_taken_over() -> None:
    state = LoopState()
    state.update({"epoch": 3, "position": 1, "step": 7, "unknown": 1})
    assert (state.epoch, state.step, state.skipped_steps) == (3, 7, 0)
    assert not hasattr(state, "unknown")


def test_the_shorter_of_epochs_and_max_steps() -> None:
    assert RunLength(7, 3).total_steps == 21
    assert RunLength(7, 3, 10).total_steps == 10
    assert RunLength(7, 3, 100).total_steps == 21


def test_epochs_that_the_steps_reach_into() -> None:
    for max_steps, epochs in ((None, 3), (1, 1), (7, 1), (8, 2), (100, 3)):
        assert RunLength(7, 3, max_steps).num_epochs == epochs
    assert RunLength(0, 3).num_epochs == 0


def test_warmup_in_steps_or_epochs() -> None:
    length = RunLength(7, 3)
    assert length.warmup_steps(WarmupConfig()) == 0
    assert length.warmup_steps(LinearWarmupConfig()) == 7
    assert length.warmup_steps(LinearWarmupConfig(epochs=0.5)) == 4
    assert length.warmup_steps(LinearWarmupConfig(steps=3)) == 3


@pytest.mark.parametrize(("warmup", "words"), [
    (LinearWarmupConfig(steps=21), "warmup.steps=21: is 21 steps, the run has 21"),
    (LinearWarmupConfig(epochs=5), "warmup.epochs=5: is 35 steps, the run has 21"),
])  # fmt: skip
def test_a_warmup_that_never_ends_is_refused_under_the_key_that_was_given(
    warmup: LinearWarmupConfig, words: str
) -> None:
    with pytest.raises(UserError) as refusal:
        RunLength(7, 3).warmup_steps(warmup)
    assert words in str(refusal.value)


@pytest.mark.parametrize(("name", "value"), [
    ("step", ""), ("step", -1), ("epoch", True), ("epoch", 1.5), ("best", 3), ("stopped_early", 1),
    ("seconds_before", math.nan),
])  # fmt: skip
def test_a_count_that_is_none_is_refused(name: str, value: object) -> None:
    """An empty string in the place of a step was taken over, and the run went on with it."""
    with pytest.raises(UserError, match=rf"loop\.{name}="):
        LoopState().update({**LoopState().to_plain(), name: value})
