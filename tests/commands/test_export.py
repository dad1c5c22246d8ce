"""Exporting by the command line's door, from a checkpoint that lies elsewhere, without its data set."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rfdetr_train.checkpoint import files
from rfdetr_train.cli import compose_config
from rfdetr_train.commands import export as export_command
from rfdetr_train.data.transforms import normalise
from rfdetr_train.engine.saved_run import load_trained_model
from rfdetr_train.errors import UserError
from rfdetr_train.postprocess import detections

Run = Callable[..., Path]


def export_to(folder: Path, *overrides: str) -> Path:
    folder.mkdir()
    export_command.export(compose_config("export", list(overrides)), folder)
    return folder


def test_a_moved_checkpoint_is_enough(run: Run, tmp_path: Path) -> None:
    run_dir = run("a", "trainer.max_steps=3", f"data.root={tmp_path / 'shapes'}")
    shutil.rmtree(tmp_path / "shapes")
    moved = (run_dir / "checkpoints/best.pt").rename(tmp_path / "mine.pt")
    shutil.rmtree(run_dir)

    folder = export_to(tmp_path / "a", f"checkpoint={moved}", "format=safetensors", "weights=ema")
    state, saved = load_file(folder / "model.safetensors"), files.load(moved)["ema"]["model"]
    assert state.keys() == saved.keys()
    assert all(state[name].equal(saved[name]) for name in state)
    card = json.loads((folder / "model.json").read_text())
    assert [entry["name"] for entry in card["classes"]] == ["circle", "square", "triangle"]
    with pytest.raises(UserError, match="the reference package has no such model"):
        export_to(tmp_path / "b", f"checkpoint={moved}", "format=reference")


def test_a_program_detects_what_evaluation_detects(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Read by the card alone: sigmoid, the best pairs, times the picture's size."""
    run_dir = run("a", "trainer.max_steps=1")
    with caplog.at_level("INFO", "rfdetr_train"):
        folder = export_to(tmp_path / "a", f"checkpoint={run_dir}", "format=torch_export")
    assert {path.name for path in folder.iterdir()} == {"model.pt2", "model.json"}
    assert caplog.messages[-1] == f"exported: {folder / 'model.pt2'}"

    extra = {"card.json": ""}
    program = torch.export.load(folder / "model.pt2", extra_files=extra).module()
    assert json.loads(extra["card.json"]) == json.loads((folder / "model.json").read_text())
    pictures = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        boxes_xyxy, logits = program(pictures / 255)
        outputs = load_trained_model(run_dir).model(normalise(pictures))
    assert logits.shape == (3, 10, 3)  # the last logit has no target and is left out
    found = detections(outputs, torch.tensor([[480, 640]] * 3), max_detections=5, num_labels=3)
    for image, one in enumerate(found):
        scores, pairs = logits[image].sigmoid().flatten().topk(5)
        assert torch.allclose(scores, one["scores"], atol=1e-6)
        assert torch.equal(pairs % 3, one["labels"])
        pixels = boxes_xyxy[image, pairs // 3] * torch.tensor([640, 480, 640, 480])
        assert torch.allclose(pixels, one["boxes_xyxy"], atol=1e-2)


def test_a_program_that_fails_its_check_is_not_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bytes:
        raise UserError("differs")

    monkeypatch.setattr(export_command, "torch_export_file", failing)
    with pytest.raises(UserError, match="differs"):
        export_to(tmp_path / "a", f"checkpoint={run('a', 'trainer.max_steps=1')}", "format=torch_export")
    assert not list((tmp_path / "a").iterdir())


@pytest.mark.parametrize(("overrides", "words"), [
    ("format=coreml", "format=coreml: choose one of onnx, torch_export, safetensors, reference"),
    ("opset=7", "opset=7: give a number from 18 to 23"),
    ("format=reference opset=18", "opset=18: means nothing with format=reference"),
    ("weights=best", "weights=best: choose one of auto, raw, ema"),
])  # fmt: skip
def test_refusals(overrides: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        compose_config("export", ["checkpoint=x", *overrides.split()])


def test_an_average_that_is_not_there_is_refused(run: Run) -> None:
    run_dir = run("a", "trainer.max_steps=1", "ema=none")
    assert load_trained_model(run_dir).weights == "raw"
    with pytest.raises(UserError, match=r"weights=ema: .* holds no average; use weights=raw"):
        load_trained_model(run_dir, "ema")
