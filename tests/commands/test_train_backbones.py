"""Runs with other backbones, adapters and one input channel: what they start from, go on from and are rebuilt from."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from comparison import equal_to_the_bit, states

from rfdetr_train.checkpoint import files
from rfdetr_train.engine.saved_run import load_trained_model
from rfdetr_train.errors import UserError

Run = Callable[..., Path]

RESNET = [
    "model.backbone=test_resnet", "model.encoder_width=null", "model.encoder_depth=null", "model.encoder_heads=null",
    "model.patch_size=null", "model.num_windows=null", "model.feature_blocks=null", "model.levels=[P3,P4]",
]  # fmt: skip
SAVED = ["checkpoint.every_steps=1", "checkpoint.keep=9", "logger.plots=false"]


def test_timms_weights_are_asked_for_once(run: Run, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """Neither a resumed run nor an evaluation needs a network; the resumed run equals the whole to the bit."""
    asked = []

    def create_model(name: str, pretrained: bool, **kwargs: object) -> torch.nn.Module:
        asked.append(pretrained)
        return original(name, False, **kwargs)

    original = timm.create_model
    monkeypatch.setattr(timm, "create_model", create_model)
    options = [*RESNET, *SAVED, "model.pretrained=true", "weights=auto"]
    whole = run("whole", *options)
    assert any(asked)
    assert "ALL ELSE FROM RANDOM ONES" in caplog.text
    assert json.loads((whole / "summary.json").read_text())["weights"] == "test_resnet of timm, the rest random"

    asked.clear()
    resumed = run("resumed", *options, f"resume={whole / 'checkpoints/step-000004.pt'}")
    assert equal_to_the_bit(states(whole / "checkpoints/last.pt"), states(resumed / "checkpoints/last.pt"))
    load_trained_model(whole / "checkpoints/last.pt", "ema")
    assert not any(asked)


def test_other_backbones_do_not_take_the_published_weights(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    start = run("a", *RESNET, "weights=auto", "trainer.max_steps=1", "model.input_channels=1")
    assert json.loads((start / "summary.json").read_text())["weights"] == "random"
    assert "the published weights are not of test_resnet" in caplog.text


def test_adapters_start_from_a_run_go_on_and_are_merged_into_the_next(run: Run) -> None:
    pytest.importorskip("peft")
    lora = [*SAVED, "model.lora_rank=2", "model.lora_dropout=0.2"]
    plain = run("plain", "trainer.max_steps=1", "ema=none", "evaluation.weights=raw")
    whole = run("whole", *lora, f"weights={plain}")
    first, base = (files.load(folder / "checkpoints/last.pt")["model"] for folder in (whole, plain))
    adapted = [name for name in first if name.endswith("base_layer.weight")]
    assert len(adapted) == 2 * 4  # of two blocks
    assert all(torch.equal(first[name], base[name.replace("base_layer.", "")]) for name in adapted)

    resumed = run("resumed", *lora, f"resume={whole / 'checkpoints/step-000004.pt'}")
    assert equal_to_the_bit(states(whole / "checkpoints/last.pt"), states(resumed / "checkpoints/last.pt"))
    still = ["trainer.max_steps=1", "optimizer.lr=0", "optimizer.encoder_lr=0"]
    merged = files.load(run("next", *still, f"weights={whole}") / "checkpoints/last.pt")["model"]
    assert not [name for name in merged if "lora" in name]
    name = adapted[0].replace("base_layer.", "")
    assert not torch.equal(merged[name], base[name])


def test_a_run_with_adapters_does_not_go_on_without_them(run: Run) -> None:
    pytest.importorskip("peft")
    adapted = run("adapted", *SAVED, "model.lora_rank=2", "trainer.max_steps=1")
    for rank in (0, 4):
        with pytest.raises(UserError, match=rf"has adapters, model.lora_rank=2, here it is {rank}; resume with"):
            run(f"rank{rank}", f"resume={adapted}", f"model.lora_rank={rank}", "trainer.max_steps=2")
