"""Whole runs with letterboxed pictures, inputs that are no squares, drawn samples and weighted classes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from comparison import equal_to_the_bit, rows_without_speed, states
from PIL import Image

from rfdetr_train.checkpoint import files
from rfdetr_train.cli import compose_config
from rfdetr_train.commands.evaluate import evaluate
from rfdetr_train.errors import UserError
from rfdetr_train.loggers.files import read_metrics

Run = Callable[..., Path]


@pytest.fixture
def unusual(tmp_path: Path) -> list[str]:
    """Five empty pictures, 64 x 32, and every key of this file."""
    (tmp_path / "empty").mkdir()
    for number in range(5):
        Image.new("RGB", (64, 32), (90, 20 * number, 40)).save(tmp_path / f"empty/{number}.png")
    return [
        "model.resolution_width=96", "data.resize=letterbox", f"data.negatives={tmp_path / 'empty'}",
        "data.background=0.4", "data.repeat_threshold=0.9", "loss.class_weights=auto", "augmentation.multi_scale=true",
        "evaluation.weights=raw",
    ]  # fmt: skip


def test_a_run_goes_on_to_the_bit_and_is_evaluated_as_it_was_trained(
    run: Run, unusual: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        whole = run("whole", *unusual, "checkpoint.every_steps=1", "checkpoint.keep=20")
    for line in ("train: 15 pictures", "an epoch draws", "class weights: circle"):
        assert line in caplog.text
    last = whole / "checkpoints/last.pt"
    saved = files.load(last)
    assert 10 + 2 <= saved["counts"]["train"] != 15
    assert saved["loop"]["step"] == 2 * -(-saved["counts"]["train"] // 4)
    assert (saved["model_config"]["resolution"], saved["model_config"]["resolution_width"]) == (64, 96)

    rest = run("rest", *unusual, f"resume={whole / 'checkpoints/step-000002.pt'}")
    assert equal_to_the_bit(states(last), states(rest / "checkpoints/last.pt"))
    assert rows_without_speed(whole) == rows_without_speed(rest)
    assert len({row["scale_px"] for row in read_metrics(whole / "metrics.jsonl") if row["split"] == "train"}) > 1

    config = compose_config("evaluate", [f"checkpoint={last}", "weights=raw", "batch_size=4"])
    assert evaluate(config, tmp_path / "evaluation") == saved["loop"]["last"]["AP"]
    assert (tmp_path / "evaluation/plots/valid_samples.png").is_file()


def test_a_class_that_does_not_exist_is_refused_before_anything_is_built(run: Run) -> None:
    with pytest.raises(UserError, match=r"no class is called circel; did you mean circle\?"):
        run("a", "loss.class_weights={circel: 2}")
