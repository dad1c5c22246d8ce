"""A whole run: what it leaves, that it repeats, and that it goes on from any step to the bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison import equal_to_the_bit, rows_without_speed, states

from rfdetr_train.checkpoint import files
from rfdetr_train.cli import compose_config
from rfdetr_train.commands.train import settle_batch_size, train
from rfdetr_train.engine.saved_run import SavedRun
from rfdetr_train.errors import UserError
from rfdetr_train.loggers import trackers
from rfdetr_train.loggers.files import read_metrics

Run = Callable[..., Path]


def test_a_run_leaves_what_the_contract_says(run: Run) -> None:
    run_dir = run("a", "trainer.epochs=2")
    rows = read_metrics(run_dir / "metrics.jsonl")
    train_rows = [row for row in rows if row["split"] == "train"]
    assert [row["step"] for row in train_rows] == [1, 2, 3, 4, 5, 6]
    for key in ("epoch", "loss", "loss_class", "loss_box", "loss_giou", "lr", "grad_norm", "images_per_s", "scale_px"):
        assert all(key in row for row in train_rows)
    valid_rows = [row for row in rows if row["split"] == "valid"]
    assert [(row["step"], row["weights"]) for row in valid_rows] == [(3, "ema"), (3, "raw"), (6, "ema"), (6, "raw")]
    for key in ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100"):
        assert all(key in row for row in valid_rows)

    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert (summary["epochs"], summary["steps"], summary["seed"]) == (2, 6, 0)
    assert (summary["data"]["train"], summary["data"]["valid"], summary["data"]["test"]) == (10, 4, None)
    assert summary["data"]["classes"] == ["circle", "square", "triangle"]
    assert [list(boxes) for boxes in summary["data"]["boxes"].values()] == [summary["data"]["classes"]] * 2
    assert summary["data"]["pictures_without_boxes"] == {"train": 0, "valid": 0}
    assert summary["model"]["optimizer_groups"] == len(train_rows[0]["lr"])
    assert summary["best"]["weights"] in ("raw", "ema")
    assert summary["weights"] == "random"
    assert summary["parent"] is None
    assert {p.name for p in (run_dir / "checkpoints").iterdir()} == {"last.pt", "best.pt"}
    assert {p.name for p in (run_dir / "plots").iterdir()} >= {"losses.png", "learning_rates.png", "valid_samples.png"}

    checkpoint = torch.load(run_dir / "checkpoints/last.pt", weights_only=True)
    for key in ("format", "model", "ema", "optimizer", "scheduler", "scaler", "loop", "random", "model_config",
                "label_map", "config", "metrics", "versions"):  # fmt: skip
        assert key in checkpoint
    assert all("param_names" in group for group in checkpoint["optimizer"]["param_groups"])
    assert checkpoint["label_map"][0]["name"] == "circle"


def test_same_seed_same_bits_and_another_seed_another_run(run: Run) -> None:
    first, second, other = run("a"), run("b", "data.num_workers=1", "data.cache=ram"), run("c", "seed=1")
    assert rows_without_speed(first) == rows_without_speed(second)
    assert rows_without_speed(first) != rows_without_speed(other)
    assert equal_to_the_bit(states(first / "checkpoints/last.pt"), states(second / "checkpoints/last.pt"))


def test_what_is_shown_scored_and_saved_changes_nothing_that_is_learnt(run: Run) -> None:
    def learnt(name: str, *keys: str) -> dict[str, Any]:
        run_dir = run(name, "trainer.epochs=2", "augmentation=strong", "logger.plots=false", *keys)
        saved = states(run_dir / "checkpoints/last.pt")
        return {part: saved[part] for part in ("model", "ema", "optimizer", "scheduler", "random")}

    first = learnt("first")
    for number, keys in enumerate((
        ["trainer.log_every_steps=50", "logger.group_norms=false", "trainer.spike_factor=0", "logger.plots=true"],
        ["evaluation.every_epochs=2", "evaluation.weights=raw", "evaluation.max_dets=5", "evaluation.batch_size=1"],
        ["data.num_workers=2", "checkpoint.every_steps=1", "data.on_error=skip", "trainer.on_oom=shrink"],
    )):  # fmt: skip
        assert equal_to_the_bit(learnt(f"other{number}", *keys), first), keys


def test_the_log_says_when_strong_stages_end(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """max_steps ends the run in its second epoch, and so the tail is that one."""
    caplog.set_level("INFO")
    run("a", "augmentation=strong", "augmentation.off_last_epochs=1", "trainer.epochs=9", "trainer.max_steps=4")
    assert "augmentation=strong: no strong stages from epoch 1 on" in caplog.text


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_a_run_goes_on_from_any_step_to_the_bit(run: Run, step: int) -> None:
    """Six steps in two epochs: step 3 is an epoch's end, the others lie in its middle."""
    options = ["checkpoint.every_steps=1", "checkpoint.keep=10", "scheduler=cosine", "warmup=linear", "warmup.steps=2"]
    whole = run("whole", *options)
    resumed = run("resumed", *options, f"resume={whole / f'checkpoints/step-{step:06d}.pt'}")
    assert equal_to_the_bit(states(whole / "checkpoints/last.pt"), states(resumed / "checkpoints/last.pt"))
    assert rows_without_speed(whole) == rows_without_speed(resumed)
    summary = json.loads((resumed / "summary.json").read_text())
    assert summary["parent"].endswith(f"step-{step:06d}.pt")


def test_an_evaluation_that_was_cut_short_is_done_again_and_not_twice(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint before an evaluation stands at the epoch's last step with the evaluation pending."""
    whole = run("whole", "trainer.epochs=2")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("rfdetr_train.engine.validator.Validator.__call__", killed)
        with pytest.raises(KeyboardInterrupt):
            run("cut", "trainer.epochs=2")
    cut = whole.with_name("cut")
    loop = files.load(cut / "checkpoints/last.pt")["loop"]
    assert (loop["evaluation_pending"], loop["position"], loop["epoch"]) == (True, 3, 0)
    assert json.loads((cut / "summary.json").read_text())["status"] == "interrupted"
    resumed = run("resumed", "trainer.epochs=2", f"resume={cut}")
    assert rows_without_speed(resumed) == rows_without_speed(whole)
    assert equal_to_the_bit(states(whole / "checkpoints/last.pt"), states(resumed / "checkpoints/last.pt"))


def test_a_resumed_run_keeps_the_best_of_its_parent(run: Run) -> None:
    first = run("first", "trainer.epochs=1")
    no_progress = ["trainer.epochs=2", "optimizer.lr=0", "optimizer.encoder_lr=0"]
    second = run("second", f"resume={first}", *no_progress)
    assert files.load(second / "checkpoints/best.pt")["loop"]["step"] == 3
    assert json.loads((second / "summary.json").read_text())["checkpoints"]["best"]


def test_swa_in_a_run_without_is_refused(run: Run) -> None:
    first = run("first", "trainer.epochs=1")
    with pytest.raises(UserError, match="had no SWA"):
        run("second", f"resume={first}", "trainer.epochs=3", "ema=swa", "ema.start_epoch=1")


def test_swa_resumes_to_the_bit(run: Run) -> None:
    options = ["trainer.epochs=4", "ema=swa", "ema.start_epoch=1", "checkpoint.every_steps=1", "checkpoint.keep=20"]
    whole = run("whole", *options)
    for step in (2, 5, 9):
        resumed = run(f"from-{step}", *options, f"resume={whole / f'checkpoints/step-{step:06d}.pt'}")
        assert equal_to_the_bit(states(whole / "checkpoints/last.pt"), states(resumed / "checkpoints/last.pt"))
        assert rows_without_speed(whole) == rows_without_speed(resumed)


def test_other_classes_on_resume_take_over_their_rows(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = run("first", "trainer.epochs=1")
    changed = files.load(first / "checkpoints/last.pt")
    changed["label_map"][0]["name"] = "ellipse"
    torch.save(changed, tmp_path / "changed.pt")
    caplog.set_level("INFO")
    second = run("second", f"resume={tmp_path / 'changed.pt'}", "trainer.epochs=2")
    assert "taken over by name: square, triangle; new: circle" in caplog.text
    assert "class heads        6  3 of 4 rows taken over by class name" in caplog.text
    assert "6 tensors (its weights are not the saved ones)" in caplog.text  # the head and its two groups' copies
    assert "its best AP does not count here" in caplog.text
    assert json.loads((second / "summary.json").read_text())["best"]["step"] == 6


def test_what_keeps_a_resumed_run_from_the_same_bits_is_said(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = run("first", "trainer.max_steps=1", "logger.plots=false")
    run("same", f"resume={first}", "trainer.max_steps=1", "logger.plots=false")
    assert "NOT TO THE SAME BITS" not in caplog.text
    changed = files.load(first / "checkpoints/last.pt")
    versions = json.loads((first / "summary.json").read_text())["versions"]
    assert changed["versions"] == versions
    changed["versions"] = {**versions, "torch": "2.0.0", "data": "0" * 16}
    files.save(tmp_path / "changed.pt", changed)
    run("second", f"resume={tmp_path / 'changed.pt'}", "trainer.max_steps=1", "logger.plots=false")
    here = f"torch 2.0.0 (here {versions['torch']}), data {'0' * 16} (here {versions['data']})"
    assert f"NOT TO THE SAME BITS: it had {here}" in caplog.text


def test_other_sizes_on_resume_fit_the_average_too(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Positions, patches and queries are adapted in both models and start without moments; the rest goes on."""
    first = run("first", "trainer.epochs=1")
    caplog.set_level("INFO")
    sizes = ["model.resolution=128", "model.patch_size=16", "model.num_queries=12", "model.group_detr=3"]
    still = ["optimizer.lr=0", "optimizer.encoder_lr=0", "trainer.epochs=2", "trainer.max_steps=4"]
    second = run("second", f"resume={first}", *sizes, "model.position_grid=12", *still)
    rows = [" ".join(line.split()) for line in caplog.text.splitlines()]
    assert "backbone 1 positions resized from 8x8 to 12x12" in rows
    assert "backbone 1 patch convolution: from patches of 8 pixels to 16" in rows
    queries = "the first 10 of 10 queries of the first 2 of 2 groups; initial values in the other 16 of 36 rows"
    assert {f"query_feat 1 {queries}", f"refpoint_embed 1 {queries}"} <= set(rows)
    assert caplog.text.count("what did not fit") == 1  # of the model; the average is the same to look at
    assert "dropped: 4 tensors (its weights are not the saved ones)" in caplog.text
    before, after = (files.load(folder / "checkpoints/last.pt") for folder in (first, second))
    kept = [*range(10), *range(12, 22)]  # of groups of 12, the first 10 of the first two
    for there, here in ((before["model"], after["model"]), (before["ema"]["model"], after["ema"]["model"])):
        assert here["backbone.vit.pos_embed"].shape == (1, 145, 24)
        assert here["backbone.vit.patch_embed.proj.weight"].shape == (24, 3, 16, 16)
        # with a rate of 0 the average still moves, towards the model
        torch.testing.assert_close(here["query_feat.weight"][kept], there["query_feat.weight"], rtol=0, atol=1e-2)
    assert torch.equal(after["model"]["query_feat.weight"][kept], before["model"]["query_feat.weight"])
    assert after["ema"]["num_updates"] == 4


@pytest.mark.parametrize(("batch_size", "position", "steps"), [(2, 1, 9), (5, 1, 5), (1, 2, 14)])
def test_another_batch_size_goes_on_after_the_images_seen(
    run: Run, caplog: pytest.LogCaptureFixture, batch_size: int, position: int, steps: int
) -> None:
    """Ten images: step 1 of 4 has seen four; the epoch ends after the rest, whatever the batches are now."""
    first = run("first", "checkpoint.every_steps=1", "checkpoint.keep=9", "trainer.epochs=2")
    file = first / f"checkpoints/step-{position:06d}.pt"
    second = run("second", f"resume={file}", f"trainer.batch_size={batch_size}", "trainer.epochs=2")
    summary = json.loads((second / "summary.json").read_text())
    assert (summary["status"], summary["epochs"]) == ("completed", 2)
    assert summary["steps"] == steps
    assert "of 10 images of its epoch" in caplog.text


def test_auto_passes_over_a_broken_checkpoint_and_never_begins_on_top_of_a_run(run: Run) -> None:
    folder = run("a", "checkpoint.every_steps=1", "checkpoint.keep=9", "trainer.epochs=1", "evaluation.weights=raw")
    last = folder / "checkpoints/last.pt"
    half = last.read_bytes()[: last.stat().st_size // 2]
    last.unlink()
    last.write_bytes(half)
    (folder / "checkpoints/step-000003.pt").unlink()
    (folder / "checkpoints/best.pt").unlink()
    resumed = run("a", "checkpoint.every_steps=1", "checkpoint.keep=9", "trainer.epochs=1", "resume=auto",
                  "evaluation.weights=raw")  # fmt: skip
    assert json.loads((resumed / "summary.json").read_text())["parent"].endswith("step-000002.pt")
    assert [row["step"] for row in read_metrics(resumed / "metrics.jsonl") if row["split"] == "train"] == [1, 2, 3]
    with pytest.raises(UserError, match="already holds a run"):
        run("a", "trainer.epochs=1", "optimizer.lr=0.5", "resume=auto")


def test_a_job_that_is_tried_again_goes_on_in_its_folder_or_begins_its_metrics_anew(run: Run) -> None:
    options = ["checkpoint.every_steps=2", "trainer.epochs=2", "evaluation.weights=raw"]
    whole = run("whole", *options)
    died = whole.with_name("died")
    died.mkdir()
    row = (whole / "metrics.jsonl").read_text().splitlines()[0]
    (died / "metrics.jsonl").write_text(f"{row}\n")  # killed before its first save
    run("died", *options, "trainer.max_steps=4")
    assert rows_without_speed(died)[:3] == rows_without_speed(whole)[:3]
    again = run("died", *options)
    assert json.loads((again / "summary.json").read_text())["parent"] == str(died / "checkpoints/last.pt")
    assert [row["step"] for row in rows_without_speed(again) if row["split"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert equal_to_the_bit(
        states(whole / "checkpoints/last.pt")["model"], states(again / "checkpoints/last.pt")["model"]
    )


def test_more_epochs_are_the_same_run(run: Run) -> None:
    first = run("first", "trainer.epochs=1")
    second = run("second", "trainer.epochs=2", "resume=auto")
    assert json.loads((second / "summary.json").read_text())["parent"] == str(first / "checkpoints/last.pt")


@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_operations_where_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    asked: list[tuple[bool, bool]] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode, warn_only: asked.append((mode, warn_only)))
    run("a", f"trainer.deterministic={wanted}", "trainer.max_steps=1", "logger.plots=false")
    assert asked == [(wanted, True)]


def test_the_last_step_of_a_cut_run_is_logged(run: Run) -> None:
    rows = read_metrics(run("a", "trainer.max_steps=2", "trainer.log_every_steps=50") / "metrics.jsonl")
    assert [row["step"] for row in rows if row["split"] == "train"] == [1, 2]


def test_no_plots_if_none_are_wanted(run: Run) -> None:
    assert not (run("a", "trainer.max_steps=1", "logger.plots=false") / "plots").exists()


def test_a_plot_that_fails_does_not_end_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("rfdetr_train.engine.run_plots.write_plots", broken)
    run_dir = run("a", "trainer.max_steps=1")
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "completed"
    assert "no space left" in caplog.text


def test_the_batch_that_fits_is_found_and_kept(run: Run) -> None:
    first = run("first", "trainer.batch_size=auto", "trainer.max_steps=1", "trainer.memory_budget_gib=1")
    summary = json.loads((first / "summary.json").read_text())
    assert summary["batch_size"] == 10  # all of the split fit into a gibibyte
    resumed = run("second", "trainer.batch_size=auto", "trainer.epochs=1", "resume=auto", "trainer.max_steps=1")
    assert json.loads((resumed / "summary.json").read_text())["batch_size"] == 10


@pytest.mark.parametrize("size", [None, "auto", "4", 0, -4, 4.0, True, [4]])
def test_a_damaged_batch_size_is_refused(size: object) -> None:
    config = compose_config("train", ["trainer.batch_size=auto"])
    parent = SavedRun(Path("last.pt"), {"config": {"trainer": {"batch_size": size}}})
    with pytest.raises(UserError, match=r"last\.pt: trainer\.batch_size=.*: damaged, .* take an earlier checkpoint"):
        settle_batch_size(config, parent, *[None] * 4)  # type: ignore[arg-type]
    damaged = SavedRun(Path("last.pt"), {"config": {"trainer": size}})
    with pytest.raises(UserError, match=r"last\.pt: damaged, what it holds cannot be used"):
        settle_batch_size(config, damaged, *[None] * 4)  # type: ignore[arg-type]


def test_auto_finds_the_newest_run_of_the_same_config(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    anew = run("first", "resume=auto", "trainer.max_steps=2")
    run("other", "trainer.max_steps=2", "optimizer.lr=2e-3")
    resumed = run("second", "resume=auto", "trainer.max_steps=2")
    assert json.loads((anew / "summary.json").read_text())["parent"] is None
    assert json.loads((resumed / "summary.json").read_text())["parent"] == str(anew / "checkpoints/last.pt")
    assert "nothing left to train" in caplog.text


def test_weights_of_another_run_are_a_new_start(run: Run) -> None:
    first = run("first", "trainer.max_steps=2")
    second = run("second", f"weights={first}", "trainer.max_steps=1", "optimizer.lr=0", "optimizer.encoder_lr=0")
    best = files.load(first / "checkpoints/best.pt")
    assert equal_to_the_bit(best["ema"]["model"], files.load(second / "checkpoints/last.pt")["model"])
    assert json.loads((second / "summary.json").read_text())["steps"] == 1


def test_parts_freeze_and_join(run: Run) -> None:
    frozen = run("frozen", "freeze.encoder.always=true", "trainer.max_steps=2")
    joined = run("joined", "freeze.encoder.until_epoch=1", "checkpoint.every_steps=1", "checkpoint.keep=10")
    groups = [files.load(joined / f"checkpoints/step-{s:06d}.pt")["optimizer"]["param_groups"] for s in (3, 4)]
    encoder = [any("backbone" in name for g in stage for name in g["param_names"]) for stage in groups]
    assert encoder == [False, True]
    summary = json.loads((frozen / "summary.json").read_text())["model"]
    all_tensors = json.loads((joined / "summary.json").read_text())["model"]["trainable_tensors"]
    assert summary["trainable_tensors"] < all_tensors
    resumed = run("resumed", "freeze.encoder.until_epoch=1", f"resume={joined / 'checkpoints/step-000005.pt'}")
    assert equal_to_the_bit(states(joined / "checkpoints/last.pt"), states(resumed / "checkpoints/last.pt"))
    at_the_border = run("border", "freeze.encoder.until_epoch=1", f"resume={joined / 'checkpoints/step-000003.pt'}")
    assert equal_to_the_bit(states(joined / "checkpoints/last.pt"), states(at_the_border / "checkpoints/last.pt"))


def test_early_stopping_ends_the_run_and_says_so(run: Run) -> None:
    no_progress = ["optimizer.lr=0", "optimizer.encoder_lr=0"]
    run_dir = run("a", "trainer.epochs=9", "trainer.early_stopping.patience=2", *no_progress)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["epochs"]) == ("completed", 3)


def test_a_run_that_a_study_finds_hopeless_ends(run: Run) -> None:
    told: list[tuple[int, float | None]] = []

    def is_hopeless(epoch: int, ap: float | None) -> bool:
        told.append((epoch, ap))
        return epoch == 2

    run_dir = run("a", "trainer.epochs=9", is_hopeless=is_hopeless)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["epochs"]) == ("completed", 2)
    scored = [row for row in read_metrics(run_dir / "metrics.jsonl") if row["split"] == "valid"]
    best = [max(row["AP"] for row in scored if row["epoch"] == epoch) for epoch in (0, 1)]
    assert told == [(1, best[0]), (2, best[1])]


def test_a_missing_data_root_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    config = compose_config("train", ["data=coco", f"data.root={tmp_path / 'nowhere'}"])
    with pytest.raises(UserError, match="nowhere"):
        train(config, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_is_whole_in_its_tracker(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[int, dict]] = []

    class Recording:
        def __init__(self, *args: object) -> None:
            rows.clear()

        def log(self, metrics: dict[str, float], step: int) -> None:
            rows.append((step, metrics))

        def log_picture(self, path: Path, step: int) -> None:
            assert path.is_file()

        def close(self, status: str) -> None:
            assert status == "completed"

    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", Recording)
    first = run("a", "logger=tensorboard", "trainer.epochs=1")
    assert [step for step, _ in rows] == [1, 2, 3, 3, 3]  # three steps, two kinds of weights
    before = list(rows)
    run("b", "logger=tensorboard", "trainer.epochs=2", f"resume={first}")
    assert rows[:5] == before
    assert [step for step, _ in rows[5:]] == [4, 5, 6, 6, 6]
    assert rows[3][1].keys() >= {"valid/ema/AP"}


def test_recomputed_activations_give_the_same_losses(run: Run) -> None:
    kept, recomputed = (run(name, "trainer.epochs=1", "logger.sample_images=0", *extra) for name, extra in (
        ("kept", []), ("recomputed", ["trainer.checkpointing=true"]),
    ))  # fmt: skip
    losses = [[row["loss"] for row in read_metrics(folder / "metrics.jsonl") if "loss" in row]
              for folder in (kept, recomputed)]  # fmt: skip
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]
    assert not list(kept.glob("plots/*samples*"))  # logger.sample_images=0
