"""Runs with steps that are not finite: what they skip, where they end, and what `replay` finds."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison import equal_to_the_bit, rows_without_speed, states

from rfdetr_train.checkpoint import files
from rfdetr_train.cli import run as run_command
from rfdetr_train.criterion import Criterion
from rfdetr_train.engine.precision import Precision
from rfdetr_train.engine.step import StepResult, TrainStep
from rfdetr_train.engine.step_watch import NonFiniteStep
from rfdetr_train.errors import UserError
from rfdetr_train.loggers.files import read_metrics

Run = Callable[..., Path]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`poison(3)` makes the loss NaN in training steps that hold the picture with id 3, once an epoch."""
    real = Criterion.__call__

    def start(image_id: int, factor: float = math.nan) -> None:
        def loss(self: Criterion, outputs: dict, targets: list[dict], num_boxes: float) -> dict[str, torch.Tensor]:
            losses = real(self, outputs, targets, num_boxes)
            if image_id in [target["image_id"] for target in targets]:
                losses["loss"] = losses["loss"] * factor
            return losses

        monkeypatch.setattr(Criterion, "__call__", loss)

    return start


def test_a_step_that_is_not_finite_is_skipped_counted_and_named(
    run: Run, poison: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Six steps, one of each epoch bad: four updates of the average, and six of the schedule."""
    options = ["scheduler=cosine", "trainer.epochs=2", "trainer.log_every_steps=5", "logger.plots=false"]
    healthy = run("healthy", *options, "trainer.log_every_steps=1")
    poison(3)
    whole = run("whole", *options, "checkpoint.every_steps=1", "checkpoint.keep=9")
    saved = files.load(whole / "checkpoints/last.pt")
    assert (saved["loop"]["step"], saved["loop"]["skipped_steps"]) == (6, 2)
    assert saved["ema"]["num_updates"] == 4
    assert {float(state["step"]) for state in saved["optimizer"]["state"].values()} == {4.0}
    assert json.loads((whole / "summary.json").read_text())["skipped_steps"] == 2
    skipped = [row for row in read_metrics(whole / "metrics.jsonl") if row.get("nonfinite", {}).get("loss")]
    assert [row["skipped_steps"] for row in skipped] == [1, 2]  # logged though only each fifth step is asked for
    assert "is skipped: loss nan" in caplog.text
    assert caplog.text.count("000003.") == 2
    rates = {row["step"]: row["lr"] for row in read_metrics(healthy / "metrics.jsonl") if row["split"] == "train"}
    assert all(row["lr"] == rates[row["step"]] for row in read_metrics(whole / "metrics.jsonl") if "lr" in row)
    for step in (2, 4):
        resumed = run(f"from-{step}", *options, f"resume={whole / f'checkpoints/step-{step:06d}.pt'}")
        assert equal_to_the_bit(states(whole / "checkpoints/last.pt"), states(resumed / "checkpoints/last.pt"))
        assert rows_without_speed(whole) == rows_without_speed(resumed)


def test_a_loss_that_jumps_is_marked(run: Run, poison: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    poison(3, factor=20.0)
    run("a", "trainer.epochs=5", "evaluation.every_epochs=9", "logger.plots=false")
    assert caplog.text.count("the loss jumps to") == 2  # the first ten steps are not compared: epochs 4 and 5
    run("b", "trainer.epochs=5", "evaluation.every_epochs=9", "logger.plots=false", "trainer.spike_factor=0")
    assert caplog.text.count("the loss jumps to") == 2


def test_a_run_that_diverges_ends_with_a_step_to_replay(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """At a rate of 1e30 the first step makes weights whose products overflow, though they are finite themselves."""
    options = ["trainer.max_bad_steps=2", "checkpoint.every_steps=1", "trainer.epochs=3", "logger.plots=false",
               "evaluation.every_epochs=9"]  # fmt: skip
    good = run("good", *options, "trainer.max_steps=1")
    before = (good / "checkpoints/last.pt").read_bytes()
    with pytest.raises(NonFiniteStep, match=r"2 steps in a row .* lower optimizer\.lr .* replay "):
        run("good", *options, "optimizer.lr=1e30", "optimizer.encoder_lr=1e30", f"resume={good}")
    file = good / "nonfinite-step-4.pt"
    assert json.loads((good / "summary.json").read_text())["status"] == "failed"
    assert before != (good / "checkpoints/last.pt").read_bytes()  # step 2, whose weights are finite
    assert files.load(good / "checkpoints/last.pt")["loop"]["step"] == 3
    saved = torch.load(file, weights_only=True)
    assert not files.nonfinite(saved["model"])

    capsys.readouterr()
    assert run_command(["replay", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "step 4 again on cpu in fp32" in shown
    assert "weights that are not finite: none" in shown
    assert "outputs that are not finite: first in backbone" in shown
    assert "loss_giou_enc" in shown


def test_an_evaluation_of_diverged_weights_says_so_and_leaves_the_step(run: Run, tmp_path: Path) -> None:
    """Fewer steps in an epoch than trainer.max_bad_steps: the evaluation meets the broken numbers first."""
    rates = ["optimizer.lr=1e30", "optimizer.encoder_lr=1e30", "trainer.clip_norm=0"]
    with pytest.raises(NonFiniteStep, match=r"2 steps were skipped; then .* score=nan .* replay "):
        run("a", *rates, "trainer.epochs=2", "logger.plots=false", "evaluation.weights=raw")
    saved = files.load(tmp_path / "runs/day/a/nonfinite-step-3.pt")  # the last of the epoch's three
    assert saved["loop"]["step"] == 2


def test_replay_finds_the_first_culprits(
    run: Run, poison: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    poison(3)
    with pytest.raises(NonFiniteStep):
        run("a", "trainer.max_bad_steps=1", "logger.plots=false", "freeze.encoder.always=true")
    (file,) = (tmp_path / "runs/day/a").glob("nonfinite-step-*.pt")
    saved = files.load(file)
    saved["model"]["projector.norm.weight"][0] = math.inf
    saved["precision"] = "fp16"
    files.save(file, saved)  # the old file is still mapped
    assert run_command(["replay", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "in fp32, in the run fp16" in shown
    assert "weights that are not finite: first in projector.norm.weight; in all 1" in shown
    assert "outputs that are not finite: first in projector.norm; " in shown
    assert "gradients that are not finite: first in " in shown
    assert "backbone" not in shown  # frozen: no gradients


def test_a_replayed_step_computes_what_the_failed_one_did(
    run: Run, poison: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Dropout draws the same numbers, to the bit, though training, an evaluation and the model's making have drawn."""
    results: list[StepResult] = []
    real = TrainStep.__call__

    def kept(self: TrainStep, *arguments: Any, **options: Any) -> StepResult:
        results.append(real(self, *arguments, **options))
        return results[-1]

    monkeypatch.setattr(TrainStep, "__call__", kept)
    options = ["model.lora_rank=2", "model.lora_dropout=0.5", "optimizer.lr=1e-2", "optimizer.encoder_lr=1e-2",
               "trainer.max_bad_steps=1", "logger.plots=false"]  # fmt: skip
    begun = run("a", *options, "trainer.epochs=1")  # adapters begin at 0, where dropout changes nothing
    poison(3)
    with pytest.raises(NonFiniteStep):
        run("b", *options, "trainer.epochs=2", f"resume={begun}")
    (file,) = (tmp_path / "runs/day/b").glob("nonfinite-step-*.pt")
    torch.manual_seed(99)
    assert run_command(["replay", str(file)]) == 0
    *_, failed, again = results
    assert math.isnan(failed.losses.pop("loss"))
    assert math.isnan(again.losses.pop("loss"))
    assert again.losses == failed.losses

    saved = files.load(file)
    files.save(file, {**saved, "random": {**saved["random"], "torch": torch.manual_seed(1).get_state()}})
    assert run_command(["replay", str(file)]) == 0
    assert results[-1].losses["loss_class"] != failed.losses["loss_class"]  # else there was nothing to restore


def test_the_scale_of_a_replayed_step_is_the_one_that_overflowed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss of more than 2 overflows at 2^127, not at 2^120, to which the scaler has gone when the step is saved."""

    def scaled(self: Precision, name: str, device: torch.device, key: str = "") -> None:
        self.name, self.device = "fp32", device
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-7)

    monkeypatch.setattr(Precision, "__init__", scaled)
    with pytest.raises(NonFiniteStep):
        run("a", "trainer.max_bad_steps=1", "logger.plots=false")
    file = tmp_path / "runs/day/a/nonfinite-step-1.pt"
    assert files.load(file)["scaler"]["scale"] == 2.0**127
    capsys.readouterr()
    assert run_command(["replay", str(file)]) == 0
    assert "gradients that are not finite: first in " in capsys.readouterr().out


def test_weights_that_are_not_finite_end_the_run_at_once_and_are_not_saved(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = torch.optim.AdamW.step

    def broken(self: torch.optim.AdamW, *args: object, **kwargs: object) -> None:
        real(self)
        self.param_groups[0]["params"][0].data.fill_(math.nan)

    monkeypatch.setattr(torch.optim.AdamW, "step", broken)
    with pytest.raises(NonFiniteStep, match="not finite are the weights themselves"):
        run("a", "logger.plots=false")
    assert not list(tmp_path.glob("runs/day/a/checkpoints/*.pt"))
    with pytest.raises(UserError, match="step 1 has made weights that are not finite"):
        run("b", "logger.plots=false", "checkpoint.every_steps=1")
    assert not list(tmp_path.glob("runs/day/b/checkpoints/*.pt"))


@pytest.mark.parametrize(("arguments", "words"), [
    ([], "name one file"), (["nowhere.pt"], "no such checkpoint file"), (["CHECKPOINT"], "without pictures"),
])  # fmt: skip
def test_replay_refuses_what_is_no_step(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.save(tmp_path / "CHECKPOINT", {"loop": {}})
    paths = [str(tmp_path / argument) for argument in arguments]
    assert run_command(["replay", *paths]) == 1
    assert words in capsys.readouterr().err
