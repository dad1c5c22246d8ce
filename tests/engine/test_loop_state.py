"""What counts as better, and states of older releases."""

import pytest

from rfdetr_train.engine.loop_state import LoopState, improves


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
