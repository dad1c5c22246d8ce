"""What a checkpoint holds and takes, and where a run stands that goes on from one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rfdetr_train.checkpoint import files
from rfdetr_train.config import (
    AdamWConfig,
    AugmentationConfig,
    CosineScheduleConfig,
    EarlyStoppingConfig,
    EmaConfig,
    EvaluationConfig,
    LoggerConfig,
    ModelConfig,
    ShapesDataConfig,
    TrainConfig,
    TrainerConfig,
    WarmupConfig,
)
from rfdetr_train.config.training import AveragingConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.sample import Dataset
from rfdetr_train.engine.averaging import build_average
from rfdetr_train.engine.course import RunLength
from rfdetr_train.engine.optimization import build_optimization
from rfdetr_train.engine.precision import Precision
from rfdetr_train.engine.run import Run
from rfdetr_train.engine.saved_run import SavedRun
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import build_model

CPU = torch.device("cpu")
MakeRun = Callable[..., Run]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Ten pictures to train on, two to score."""
    root = str(tmp_path_factory.mktemp("shapes"))
    return read_dataset(ShapesDataConfig(root=root, train_images=10, valid_images=2, image_size_px=32))


@pytest.fixture
def make_run(dataset: Dataset, small_config: Callable[..., ModelConfig], tmp_path: Path) -> MakeRun:
    def make(ema: AveragingConfig | None = None, batch_size: int = 4, patience: int | None = None) -> Run:
        stopping = EarlyStoppingConfig(patience=patience)
        config = TrainConfig(
            model=small_config(),
            optimizer=AdamWConfig(),
            scheduler=CosineScheduleConfig(),
            warmup=WarmupConfig(),
            data=ShapesDataConfig(),
            augmentation=AugmentationConfig(name="none"),
            ema=ema or EmaConfig(),
            evaluation=EvaluationConfig(),
            trainer=TrainerConfig(epochs=2, batch_size=batch_size, early_stopping=stopping),
            logger=LoggerConfig(),
        )
        model = build_model(config.model, 3)
        length = RunLength(3, config.trainer.epochs)
        optimization = build_optimization(config, model, length, CPU)
        average = build_average(config.ema, model)
        return Run(config, tmp_path, dataset, model, optimization, average, Precision("fp32", CPU), length, 10)

    return make


def take_step(run: Run) -> None:
    for parameter in run.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    run.optimization.optimizer.step()
    run.average.step_done()
    run.optimization.scheduler.step()
    run.loop.step += 1
    run.loop.position += 1


def as_saved(run: Run, path: Path, **changes: Any) -> SavedRun:
    files.save(path, {**run.to_checkpoint(), **changes})
    return SavedRun.to_resume(path)


@pytest.mark.parametrize("average", [EmaConfig(), AveragingConfig()])
def test_the_estimate_is_the_size_of_the_file(make_run: MakeRun, tmp_path: Path, average: AveragingConfig) -> None:
    """Tensors, the average and two moments; names, config and pickling are on top."""
    run = make_run(ema=average)
    take_step(run)
    as_saved(run, tmp_path / "a.pt")
    measured = (tmp_path / "a.pt").stat().st_size
    assert run.checkpoint_bytes() < measured < 1.6 * run.checkpoint_bytes()  # of a detector of a few thousand weights


def test_a_restored_run_is_the_one_that_was_saved(make_run: MakeRun, tmp_path: Path) -> None:
    """To the bit: weights, moments, average, rates and random numbers."""
    first = make_run()
    take_step(first)
    saved = as_saved(first, tmp_path / "a.pt")
    take_step(first)
    second = make_run()  # of other initial weights
    second.restore(saved)
    assert (second.loop.step, second.loop.position) == (1, 1)
    take_step(second)
    assert second.optimization.scheduler.last_lr == first.optimization.scheduler.last_lr
    one, other = (run.to_checkpoint() for run in (first, second))
    assert all(torch.equal(weight, other["model"][name]) for name, weight in one["model"].items())
    assert all(torch.equal(weight, other["ema"]["model"][name]) for name, weight in one["ema"]["model"].items())
    assert one["ema"]["num_updates"] == other["ema"]["num_updates"] == 2


@pytest.mark.parametrize(("position", "batch_size", "expected"), [
    (1, 4, 1),
    (1, 2, 2),  # four pictures seen: two steps of two
    (2, 3, 2),  # eight seen: two whole steps of three, and two pictures again
    (3, 5, 2),  # all ten: the epoch is over
])  # fmt: skip
def test_another_batch_size_goes_on_after_the_pictures_seen(
    make_run: MakeRun, tmp_path: Path, position: int, batch_size: int, expected: int
) -> None:
    first = make_run()
    first.loop.position = first.loop.step = position
    take_step(first)  # for moments
    first.loop.position = first.loop.step = position
    second = make_run(batch_size=batch_size)
    second.restore(as_saved(first, tmp_path / "a.pt"))
    assert (second.loop.position, second.loop.step) == (expected, position)


def test_early_stopping_is_judged_anew_by_a_more_patient_config(make_run: MakeRun, tmp_path: Path) -> None:
    first = make_run(patience=2)
    take_step(first)
    first.loop.stopped_early, first.loop.evaluations_without_gain = True, 2
    saved = as_saved(first, tmp_path / "a.pt")
    for patience, stopped in ((2, True), (3, False), (None, False)):
        second = make_run(patience=patience)
        second.restore(saved)
        assert second.loop.stopped_early is stopped


def test_what_was_another_is_named(make_run: MakeRun, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = make_run()
    take_step(first)
    first.loop.best = first.loop.last = {"step": 1, "AP": 0.5}
    others = {**first.versions, "torch": "1.0"}
    counts = {"images_per_step": 4, "train": 10, "valid": 99}
    second = make_run()
    second.restore(as_saved(first, tmp_path / "a.pt", versions=others, counts=counts))
    assert f"NOT TO THE SAME BITS: it had torch 1.0 (here {torch.__version__})" in caplog.text
    assert "its best AP does not count here" in caplog.text
    assert second.loop.best is None


def test_adapters_are_not_left_behind(make_run: MakeRun, tmp_path: Path) -> None:
    first = make_run()
    take_step(first)
    model_config = {**first.to_checkpoint()["model_config"], "lora_rank": 8}
    with pytest.raises(UserError, match=r"has adapters, model\.lora_rank=8, here it is 0"):
        make_run().restore(as_saved(first, tmp_path / "a.pt", model_config=model_config))
