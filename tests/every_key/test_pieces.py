"""Every key of what a run is made of besides its parts: pictures, averages, saves, losses, the data set."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_keys import values_that_differ
from PIL import Image
from torch import nn
from weak_stages import WEAK_STAGES

from rfdetr_train import config
from rfdetr_train.config import AugmentationConfig, CheckpointConfig, DataConfig, EmaConfig, ShapesDataConfig, SwaConfig
from rfdetr_train.criterion import Criterion, find_class_weights
from rfdetr_train.data.canvas import Placement
from rfdetr_train.data.dataset import read_dataset, with_negatives
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.data.plan import draws_per_picture
from rfdetr_train.data.sample import Split
from rfdetr_train.data.transforms import training_scales
from rfdetr_train.engine import saver as saver_module
from rfdetr_train.engine.averaging import build_average
from rfdetr_train.engine.saver import Saver
from rfdetr_train.errors import UserError
from rfdetr_train.matcher import match
from rfdetr_train.optim.schedulers import build_scheduler
from rfdetr_train.optim.swa_scheduler import SwaScheduler
from rfdetr_train.schema import SCHEDULERS

FLIP = {"_target_": "torchvision.transforms.v2.RandomVerticalFlip", "p": 1.0}


# --------------------------------------------------------------------------------------------------------- pictures
@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    root = str(tmp_path_factory.mktemp("shapes"))
    return read_dataset(ShapesDataConfig(root=root, train_images=6, valid_images=1, image_size_px=64)).splits["train"]


OTHER_AUGMENTATION = {
    **dict.fromkeys((*WEAK_STAGES, *config.STRONG_STAGES), 0.5), "multi_scale": True, "zoom_out_most": 4.0,
    "affine_degrees": 40.0, "affine_scale": 0.9, "affine_translate": 0.6, "photometric_strength": 0.1,
    "min_visible": 0.9, "min_box_px": 18.0, "off_last_epochs": 2, "extra": [FLIP],
}  # fmt: skip
ON = {"zoom_out": 1.0, "affine": 1.0, "photometric": 1.0}
"""So that what belongs to a stage has something to do; the stage itself is then changed to a half."""


def test_every_key_of_an_augmentation(split: Split) -> None:
    """The views of two epochs of three, of six pictures each."""

    def views(recipe: AugmentationConfig) -> str:
        scales = training_scales(64, 16) if recipe.multi_scale else [64]
        options: dict[str, Any] = {"batch_size": 3, "accumulation_steps": 1, "seed": 0, "num_workers": 0}
        with TrainLoader(split, recipe, scales, num_epochs=3, **options) as loader:
            batches = [batch for epoch in (0, 1) for window in loader.epoch(epoch) for batch in window]
        boxes = [target["boxes_cxcywh"].tolist() for batch in batches for target in batch.targets]
        return repr(([batch.images.long().sum(dim=(2, 3)).tolist() for batch in batches], boxes))

    assert values_that_differ(AugmentationConfig("x", off_last_epochs=0, **ON), OTHER_AUGMENTATION, views) == []


# --------------------------------------------------------------------------------------------------------- averages
def test_every_key_of_an_ema() -> None:
    def averaged(section: EmaConfig) -> str:
        model = nn.Linear(1, 1, bias=False)
        average = build_average(section, model)
        for value in (0.0, 1.0, 2.0):
            model.weight.data.fill_(value)
            average.step_done()
        assert average.model is not None
        return repr(average.model.state_dict()["weight"].tolist())

    assert values_that_differ(EmaConfig(), {"decay": 0.5, "tau": 0.0}, averaged) == []


def test_every_key_of_swa() -> None:
    """The average of weights that are the number of the epoch, and the rates of each."""

    def averaged(section: SwaConfig) -> str:
        model = nn.Linear(1, 1, bias=False)
        average = build_average(section, model)
        optimizer = torch.optim.SGD(
            [{"params": model.weight, "lr": 1.0, "param_names": ["weight"], "group_name": "all"}]
        )
        before = build_scheduler(optimizer, SCHEDULERS["constant"](), warmup_steps=0, total_steps=6,
                                 steps_per_epoch=1, parameter_order=["weight"])  # fmt: skip
        scheduler, rates = SwaScheduler(before, section), []
        for epoch in range(6):
            model.weight.data.fill_(float(epoch))
            optimizer.step()
            scheduler.step()
            average.epoch_done(epoch)
            scheduler.epoch_end()
            rates.append(optimizer.param_groups[0]["lr"])
        assert average.model is not None
        return repr((average.model.state_dict()["weight"].tolist(), rates))

    changes = {"start_epoch": 4, "lr_factor": 0.5, "anneal_epochs": 3}
    assert values_that_differ(SwaConfig(start_epoch=2), changes, averaged) == []


# ------------------------------------------------------------------------------------------------------------ saves
def test_every_key_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files after six steps of twenty seconds, three an epoch."""
    clock = [0.0]
    monkeypatch.setattr(saver_module.time, "monotonic", lambda: clock[0])

    def files_left(section: CheckpointConfig) -> str:
        clock[0] = 0.0
        folder = tmp_path / repr(dataclasses.astuple(section))
        saver = Saver(folder, section, lambda: {"loop": {}, "at": clock[0]})
        saves = []
        for step in range(1, 7):
            clock[0] += 20.0
            if saver.due_after_step(step) or (step % 3 == 0 and saver.due_after_epoch(step // 3 - 1)):
                saver.save(step)
                saves.append(step)
        return repr((saves, sorted(path.name for path in folder.iterdir())))

    changes = {"every_steps": 2, "every_epochs": 2, "every_minutes": 0.5, "keep": 2}
    assert values_that_differ(CheckpointConfig(), changes, files_left) == []
    assert time.monotonic is saver_module.time.monotonic


# ------------------------------------------------------------------------------------------------------------- loss
def test_every_key_of_a_loss() -> None:
    def loss(section: config.LossConfig) -> str:
        torch.manual_seed(0)
        output = {"logits": torch.randn(1, 4, 3), "boxes_cxcywh": torch.rand(1, 4, 4) / 2 + 0.1}
        outputs = {**output, "aux": [], "enc": output}
        targets = [{"labels": torch.tensor([0, 1, 1]), "boxes_cxcywh": torch.rand(3, 4) / 2 + 0.1}]
        weights = find_class_weights(section.class_weights, ["a", "b"], [1, 2])
        return repr(Criterion(4, match, class_weights=weights)(outputs, targets, 3.0)["loss_class"].item())

    for other in ("auto", {"a": 2.0}):
        assert values_that_differ(config.LossConfig(), {"class_weights": other}, loss) == []


# ------------------------------------------------------------------------------------------------------------- data
@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in COCO's format: of cats, of a dog, of nothing, a broken one, a large one, one by a link."""
    folder = tmp_path_factory.mktemp("coco")
    (folder / "train").mkdir()
    images, annotations = [], []
    for number in range(1, 10):
        size = (200, 100) if number == 5 else (100, 80)
        images.append({"id": number, "file_name": f"{number}.png", "width": size[0], "height": size[1]})
        Image.new("RGB", size, (20 * number, 0, 0)).save(folder / "train" / f"{number}.png")
        if number not in (3, 7, 8):
            annotations.append({"id": number, "image_id": number, "category_id": 1 + (number == 2),
                                "bbox": [10, 10, 20, 30]})  # fmt: skip
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    table = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "train" / "_annotations.coco.json").write_text(json.dumps(table))
    outside = tmp_path_factory.mktemp("outside") / "6.png"
    (folder / "train" / "6.png").rename(outside)
    (folder / "train" / "6.png").symlink_to(outside)
    (folder / "train" / "4.png").write_bytes(b"broken")
    (folder / "negatives").mkdir()
    Image.new("RGB", (100, 100)).save(folder / "negatives" / "n.png")
    return folder


OTHER_DATA: dict[str, Any] = {
    "root": "elsewhere", "format": "yolo", "classes": ["cat"], "valid_fraction": 0.2, "split_seed": 1,
    "allow_outside_root": False, "on_error": "error", "resize": "letterbox", "background": 0.0,
    "repeat_threshold": 0.9, "max_megapixels": 0.015,
}  # fmt: skip
SEEN_BY_WORKERS = ("num_workers", "cache", "cache_dir")
"""The numbers do not depend on them; whole runs show what does."""


def test_every_key_of_a_data_set(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Names and boxes of the pictures of both splits, the views of two epochs; or what is refused."""

    def seen(section: DataConfig) -> str:
        try:
            dataset = read_dataset(section, ("train", "valid"))
            if section.negatives is not None:
                dataset = with_negatives(dataset, section.negatives)
            dataset = check_images(dataset, section.on_error, max_megapixels=section.max_megapixels)
        except UserError as error:
            return str(error)
        names = {name: [one.file_names[i] for i in range(len(one))] for name, one in dataset.splits.items()}
        train = dataset.splits["train"]
        with TrainLoader(
            train, AugmentationConfig("x"), [32], batch_size=2, accumulation_steps=1, seed=0, num_workers=0,
            draws_per_picture=draws_per_picture(train, section), placement=Placement(section.resize == "letterbox", 16),
        ) as loader:  # fmt: skip
            batches = [batch for epoch in (0, 1) for window in loader.epoch(epoch) for batch in window]
        views = [(batch.images.long().sum().item(), [t["image_id"] for t in batch.targets]) for batch in batches]
        return repr((names, dataset.label_map, views))

    options: dict[str, Any] = {"valid_fraction": 0.4, "allow_outside_root": True, "on_error": "skip"}
    section = DataConfig(name="auto", root=str(root), **options)
    changes = {**OTHER_DATA, "negatives": str(root / "negatives")}
    assert values_that_differ(section, changes, seen) == list(SEEN_BY_WORKERS)


def test_every_key_of_the_demo_set(tmp_path: Path) -> None:
    own = ("train_images", "valid_images", "image_size_px", "shapes_seed")

    def written(section: ShapesDataConfig) -> str:
        folder = tmp_path / repr([getattr(section, key) for key in own])
        splits = read_dataset(dataclasses.replace(section, root=str(folder))).splits
        return repr([(len(one), one.sizes_px.tolist(), one.boxes_xywh.tolist()) for one in splits.values()])

    changes = dict(zip(own, (3, 2, 96, 1), strict=True))
    common = [field.name for field in dataclasses.fields(DataConfig) if field.name != "name"]
    section = ShapesDataConfig(train_images=2, valid_images=1, image_size_px=64)
    assert values_that_differ(section, changes, written) == common
