"""Epochs become steps."""

import pytest

from rfdetr_train.config import LinearWarmupConfig, WarmupConfig
from rfdetr_train.engine.run_length import RunLength
from rfdetr_train.errors import UserError


def test_the_shorter_of_epochs_and_max_steps() -> None:
    assert RunLength.of(7, 3, None).total_steps == 21
    assert RunLength.of(7, 3, 10).total_steps == 10
    assert RunLength.of(7, 3, 100).total_steps == 21


def test_epochs_that_the_steps_reach_into() -> None:
    for max_steps, epochs in ((None, 3), (1, 1), (7, 1), (8, 2), (100, 3)):
        assert RunLength.of(7, 3, max_steps).num_epochs == epochs
    assert RunLength.of(0, 3, None).num_epochs == 0


def test_warmup_in_steps_or_epochs() -> None:
    length = RunLength.of(7, 3, None)
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
        RunLength.of(7, 3, None).warmup_steps(warmup)
    assert words in str(refusal.value)
