"""Steps that are not finite, and losses that jump: what is counted, said and left behind."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rfdetr_train.checkpoint import files
from rfdetr_train.data.sample import Batch
from rfdetr_train.engine.course import LoopState
from rfdetr_train.engine.step import StepResult
from rfdetr_train.engine.step_watch import NonFiniteStep, StepWatch
from rfdetr_train.errors import UserError

WINDOW = [Batch(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), [{"image_id": 7, "labels": torch.zeros(0)}])]


@pytest.fixture
def watch(tmp_path: Path) -> StepWatch:
    loop = LoopState(step=20)
    split = SimpleNamespace(file_names=["a.jpg", "b.jpg"], image_ids=np.array([3, 7]))
    model = torch.nn.Linear(1, 1)
    content = {"model": model.state_dict(), "optimizer": {"state": {0: 1}, "param_groups": []}, "ema": {"kind": "ema"}}
    run: Any = SimpleNamespace(
        folder=tmp_path,
        loop=loop,
        model=model,
        config=SimpleNamespace(trainer=SimpleNamespace(max_bad_steps=3, spike_factor=5.0)),
        dataset=SimpleNamespace(splits={"train": split}),
        precision=SimpleNamespace(name="fp32"),
        to_checkpoint=lambda: {**content, "loop": loop.to_plain()},
    )
    return StepWatch(run, None)


def step_with(watch: StepWatch, loss: float, norm: float = 1.0) -> None:
    """Look at a step, and count it as the trainer does."""
    watch.look(WINDOW, StepResult({"loss": loss}, norm, 1))
    watch.run.loop.step += 1


def test_bad_steps_in_a_row_end_a_run_with_the_last_of_them(watch: StepWatch, tmp_path: Path) -> None:
    """Steps 21 and 22 are bad, 23 is good, 24 to 26 are bad: three in a row, five in all."""
    for loss, norm in ((math.nan, 1.0), (1.0, math.inf), (1.0, 1.0), (math.inf, 1.0), (math.nan, 1.0)):
        step_with(watch, loss, norm)
    assert (watch.run.loop.skipped_steps, watch.run.loop.skipped_in_a_row) == (4, 2)
    with pytest.raises(NonFiniteStep, match=r"3 steps in a row .* replay .*nonfinite-step-26\.pt"):
        step_with(watch, math.nan)
    saved = files.load(tmp_path / "nonfinite-step-26.pt")
    assert saved["loop"]["step"] == 25
    assert (saved["pictures"], saved["precision"]) == ("b.jpg", "fp32")
    assert torch.equal(saved["window"][0]["images"], WINDOW[0].images)


def test_weights_that_are_not_finite_end_it_at_once(watch: StepWatch) -> None:
    watch.run.model.weight.data.fill_(math.nan)
    with pytest.raises(NonFiniteStep, match="not finite are the weights themselves, weight"):
        step_with(watch, math.nan)


def test_an_evaluation_that_fails_after_skipped_steps_is_explained_by_them(watch: StepWatch, tmp_path: Path) -> None:
    failure = UserError("score=nan")
    assert watch.explain(failure) is failure
    step_with(watch, math.nan)
    explained = watch.explain(failure)
    assert isinstance(explained, NonFiniteStep)
    assert "1 steps were skipped; then score=nan" in str(explained)
    assert files.load(tmp_path / "nonfinite-step-21.pt")["loop"]["step"] == 20
    step_with(watch, 1.0)
    assert watch.explain(failure) is failure


def test_a_jump_is_five_times_the_median_of_ten_steps_or_more(
    watch: StepWatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 1 to 10 the median is 5.5: 27.5 is no jump, and then the median of eleven is 6: 30.1 is one."""
    for loss in (*range(1, 11), 27.5):
        step_with(watch, float(loss))
    assert "jumps" not in caplog.text
    step_with(watch, 30.1)
    assert "step 32: the loss jumps to 30.1, the median of the last 11 steps being 6, on b.jpg" in caplog.text
