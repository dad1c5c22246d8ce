"""Runs of the reference package that go on here."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.reference_weights import from_reference, reference_order, to_reference
from rfdetr_train.cli import compose_config
from rfdetr_train.commands.train import train
from rfdetr_train.errors import UserError
from rfdetr_train.loggers.files import read_metrics
from rfdetr_train.models.rfdetr import build_model

Run = Callable[..., Path]
SCHEDULE = ["scheduler=cosine", "scheduler.min_factor=0.1", "logger.plots=false", "optimizer.lr=2e-4"]


def share(step: int, total_steps: int) -> float:
    """The reference's cosine without warmup, down to a tenth."""
    return 0.1 + (1 - 0.1) * 0.5 * (1 + math.cos(math.pi * (step / total_steps)))


def head_rates(run_dir: Path) -> dict[int, float]:
    rows = [row for row in read_metrics(run_dir / "metrics.jsonl") if row["split"] == "train"]
    return {row["step"]: max(row["lr"].values()) for row in rows}


@pytest.fixture
def reference_file(tmp_path: Path) -> Path:
    """What the reference would write after the first epoch of three steps on three classes."""
    from conftest import SMALL  # the sizes of the runs of this folder

    torch.manual_seed(1)
    state = to_reference(build_model(compose_config("train", SMALL).model, 3).state_dict())
    order = reference_order(state)
    parameters = [torch.nn.Parameter(state[name]) for name in order]
    optimizer = torch.optim.AdamW([{"params": [parameter]} for parameter in parameters], lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share(step, 12))
    for _ in range(3):
        for name, parameter in zip(order, parameters, strict=True):
            parameter.grad = None if "mask_token" in name else torch.ones_like(parameter)
        optimizer.step()
        scheduler.step()
    progress = {"total": {"ready": 1, "started": 1, "processed": 1, "completed": 0}}
    content = {
        "state_dict": {f"model.{name}": value.detach() for name, value in zip(order, parameters, strict=True)},
        "epoch": 0, "global_step": 3,
        "loops": {"fit_loop": {"epoch_progress": progress, "epoch_loop.batch_progress": {"is_last_batch": True}}},
        "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [scheduler.state_dict()],
        "args": {"class_names": ["triangle", "square", "circle"], "lr": 1e-4, "lr_scheduler": "cosine",
                 "lr_scheduler_kwargs": {"min_factor": 0.1}, "epochs": 4, "batch_size": 4},
    }  # fmt: skip
    torch.save(content, tmp_path / "last.ckpt")
    return tmp_path / "last.ckpt"


def test_a_run_of_the_reference_goes_on(run: Run, reference_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its classes are here in another order, its rate is another: the config's holds, at the same step."""
    caplog.set_level("INFO")
    first = run("first", f"resume={reference_file}", "trainer.epochs=4", *SCHEDULE)
    expected = {step + 1: pytest.approx(2e-4 * share(step, 12), rel=1e-12) for step in range(3, 12)}
    assert head_rates(first) == expected
    for said in (
        "the random state, the best AP and the place inside an epoch start afresh",
        "was trained with optimizer.lr=0.0001 (here 0.0002); this config holds",
        "going on after step 3",
        "taken over by name: circle, square, triangle; new: none",
        "6 tensors (its weights are not the saved ones)",  # the class heads, whose rows have moved
    ):
        assert said in caplog.text, said
    assert "steps in" not in caplog.text  # an epoch has three steps there and here
    summary = json.loads((first / "summary.json").read_text())
    assert (summary["steps"], summary["epochs"], summary["parent"]) == (12, 4, str(reference_file))
    again = run("again", f"resume={first}", "trainer.max_steps=13", "trainer.epochs=5", *SCHEDULE)  # one of ours now
    assert list(head_rates(again)) == list(range(4, 14))


def test_it_is_one_of_ours_from_the_first_second(
    run: Run, reference_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rfdetr_train.engine.trainer.Trainer.fit", killed)
    with pytest.raises(KeyboardInterrupt):
        run("first", f"resume={reference_file}", "trainer.batch_size=2", *SCHEDULE)
    saved = files.load(reference_file.parent / "runs/day/first/checkpoints/last.pt")
    theirs = torch.load(reference_file, weights_only=True)["state_dict"]
    ours = from_reference({name.removeprefix("model."): value for name, value in theirs.items()})
    assert (saved["loop"]["step"], saved["loop"]["epoch"]) == (3, 1)
    assert torch.equal(saved["model"]["box_embed.layers.0.weight"], ours["box_embed.layers.0.weight"])
    assert torch.equal(saved["model"]["class_embed.weight"], ours["class_embed.weight"][[2, 1, 0, 3]])


def test_epochs_of_another_number_of_steps_are_said(
    run: Run, reference_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run("first", f"resume={reference_file}", "trainer.batch_size=2", "trainer.max_steps=4", *SCHEDULE)
    assert "has made 3 steps in 1 epochs, an epoch has 5 here; the schedule goes on from the step" in caplog.text


def test_most_of_a_model_must_fit_unless_asked(run: Run, reference_file: Path) -> None:
    with pytest.raises(UserError, match="weights_allow_partial=true takes what fits"):
        run("first", f"weights={reference_file}", "model.hidden_dim=64", "model.ffn_dim=512", "trainer.max_steps=1")
    partial = ["model.hidden_dim=64", "model.ffn_dim=512", "weights_allow_partial=true", "trainer.max_steps=1"]
    assert (run("second", f"weights={reference_file}", "logger.plots=false", *partial) / "summary.json").is_file()
    with pytest.raises(UserError, match=r"weights_allow_partial=True: does nothing with weights=none"):
        run("third", "weights_allow_partial=true")


LEGACY, BCCD = os.environ.get("RFDETR_TRAIN_LEGACY"), os.environ.get("RFDETR_TRAIN_BCCD")
TOY = [
    "model=nano", "model.resolution=128", "model.encoder_width=48", "model.encoder_heads=3", "model.hidden_dim=32",
    "model.self_attention_heads=4", "model.cross_attention_heads=4", "model.num_queries=20", "model.group_detr=3",
    "trainer.batch_size=2", "trainer.precision=fp32", "trainer.log_every_steps=1", "data=coco", "data.num_workers=0",
]  # fmt: skip


@pytest.mark.skipif(not (LEGACY and BCCD), reason="RFDETR_TRAIN_LEGACY and RFDETR_TRAIN_BCCD name no folders")
def test_a_run_of_release_1_9_4_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It had made two epochs of five steps of two pictures, with a cosine to a tenth; here its third of four."""
    root = tmp_path / "bccd"
    for split, count in (("train", 10), ("valid", 4)):
        source = Path(BCCD or "") / split
        coco = json.loads((source / "_annotations.coco.json").read_text())
        coco["images"] = coco["images"][:count]
        ids = {image["id"] for image in coco["images"]}
        coco["annotations"] = [one for one in coco["annotations"] if one["image_id"] in ids]
        (root / split).mkdir(parents=True)
        (root / split / "_annotations.coco.json").write_text(json.dumps(coco))
        for image in coco["images"]:
            shutil.copy(source / image["file_name"], root / split)
    more = [f"data.root={root}", f"resume={LEGACY}/reference_1.9.4_cosine.ckpt", "trainer.epochs=4", *SCHEDULE[:3]]
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    train(compose_config("train", [*TOY, *more, f"run_dir={tmp_path}"]), run_dir)
    assert head_rates(run_dir) == {step + 1: 1e-4 * share(step, 20) for step in range(10, 20)}
    losses = [row["loss"] for row in read_metrics(run_dir / "metrics.jsonl") if row["split"] == "train"]
    assert all(12 < loss < 22 for loss in losses)  # the level of such a run, in the reference and here
    assert "they are taken to be the same: Platelets, RBC, WBC" in caplog.text
    last = files.load(run_dir / "checkpoints/last.pt")
    assert (last["loop"]["step"], last["ema"]["num_updates"], last["scheduler"]["last_epoch"]) == (20, 20, 20)
