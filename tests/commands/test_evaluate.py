"""A checkpoint is scored on the data that its run was scored on, whatever that was cut and joined from."""

import dataclasses
import json
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from small_run import SMALL_MODEL

from rfdetr_train.cli import compose_config
from rfdetr_train.commands.evaluate import choose_data, evaluate, load_split
from rfdetr_train.commands.train import train
from rfdetr_train.config import DataConfig, EvaluateConfig, EvaluateDataConfig
from rfdetr_train.engine.saved_run import SavedRun
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

SMALL = [
    *SMALL_MODEL, "data.num_workers=0",
    "trainer.batch_size=4", "trainer.precision=fp32", "trainer.max_steps=1", "optimizer.lr=1e-3",
    "augmentation=none", "logger.sample_images=0",
]  # fmt: skip


@pytest.fixture
def yolo_root(tmp_path: Path) -> Path:
    """Ten pictures, no valid split; a cat, a dog and a car in each."""
    root = tmp_path / "set"
    (root / "images").mkdir(parents=True)
    (root / "labels").mkdir()
    for number in range(10):
        picture = Image.new("RGB", (64, 64))
        ImageDraw.Draw(picture).rectangle((4 * number, 8, 4 * number + 15, 23), fill="red")
        picture.save(root / "images" / f"{number}.png")
        lines = [f"{c} {(4 * number + 8) / 64} {y / 64} .25 .25" for c, y in enumerate((16, 32, 48))]
        (root / "labels" / f"{number}.txt").write_text("\n".join(lines))
    (root / "classes.txt").write_text("cat\ndog\ncar\n")
    return root


def test_a_run_with_its_own_cut_and_classes(yolo_root: Path, tmp_path: Path) -> None:
    keys = ["data=auto", f"data.root={yolo_root}", "data.valid_fraction=0.3", "data.classes=[{pet:[dog,cat]}]"]
    run_dir, evaluation_dir = tmp_path / "run", tmp_path / "evaluation"
    run_dir.mkdir()
    evaluation_dir.mkdir()
    best = train(compose_config("train", [*SMALL, *keys]), run_dir)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["data"]["format"] == "yolo"
    assert (summary["data"]["train"], summary["data"]["valid"], summary["data"]["classes"]) == (7, 3, ["pet"])
    config = compose_config("evaluate", [f"checkpoint={run_dir}", "data.num_workers=0", "sample_images=0"])
    assert evaluate(config, evaluation_dir) == best
    config = dataclasses.replace(config, backend="pycocotools", max_dets=7)
    (tmp_path / "another").mkdir()
    evaluate(config, tmp_path / "another")
    another = json.loads((tmp_path / "another" / "evaluation.json").read_text())
    assert (another["backend"], another["max_dets"]) == ("pycocotools", 7)
    results = json.loads((evaluation_dir / "results.json").read_text())
    assert {result["category_id"] for result in results} == {0}


def saved(root: Path, **keys: object) -> SavedRun:
    config = DataConfig(name="auto", root=str(root), **keys)  # type: ignore[arg-type]
    data = {**dataclasses.asdict(config), "cache_of_another_version": 3}
    return SavedRun(Path("x"), {"config": {"data": data}, "data_root": str(root)})


def evaluation(**keys: object) -> EvaluateConfig:
    return EvaluateConfig(checkpoint="x", data=EvaluateDataConfig(num_workers=0, **keys))  # type: ignore[arg-type]


def test_the_same_data_set_is_read_the_same_way(tmp_path: Path) -> None:
    run = saved(tmp_path, format="csv", classes=["a"], valid_fraction=0.5, split_seed=3, allow_outside_root=True)
    for given in (evaluation(), evaluation(root=str(tmp_path)), evaluation(root=f"{tmp_path}/x/..")):
        data = choose_data(given, run)
        assert (data.format, data.classes, data.valid_fraction, data.split_seed) == ("csv", ["a"], 0.5, 3)
        assert data.allow_outside_root
    assert choose_data(evaluation(format="voc"), run).format == "voc"


def test_another_data_set_has_its_own_format_and_splits(tmp_path: Path) -> None:
    run = saved(tmp_path / "a", format="csv", classes=[{"b": ["a"]}], valid_fraction=0.5)
    data = choose_data(evaluation(root=str(tmp_path / "b"), on_error="skip"), run)
    assert (data.format, data.classes, data.valid_fraction, data.on_error) == ("auto", [{"b": ["a"]}], None, "skip")
    assert choose_data(evaluation(root=str(tmp_path / "b"), format="yolo"), run).format == "yolo"


def test_a_run_of_before_the_formats(tmp_path: Path) -> None:
    content = {"config": {"data": {"name": "coco", "root": str(tmp_path)}}, "data_root": str(tmp_path)}
    assert choose_data(evaluation(), SavedRun(Path("x"), content)).format == "coco"


def test_a_file_of_the_reference_package_does_not_know_its_data_set(tmp_path: Path) -> None:
    assert choose_data(evaluation(root=str(tmp_path)), SavedRun(Path("x"), {"config": None})).format == "auto"
    with pytest.raises(UserError, match=r"checkpoint=x: does not name its data set; give data.root=PATH"):
        choose_data(evaluation(), SavedRun(Path("x"), {"config": None}))


@pytest.mark.parametrize("root", [7, True, b"/x", ["/x"], {"root": "/x"}])
def test_a_damaged_data_root_in_a_checkpoint_is_refused(root: object, tmp_path: Path) -> None:
    run = saved(tmp_path)
    damaged = SavedRun(run.path, {**run.content, "data_root": root})
    with pytest.raises(UserError, match=r"data_root=.*: damaged, no run has saved this; give data\.root=PATH"):
        choose_data(evaluation(), damaged)


def test_another_format_of_the_same_classes(yolo_root: Path, tmp_path: Path) -> None:
    """Trained on COCO's ids 5 and 9; YOLO's numbers are others, its names the same."""
    (yolo_root / "images").rename(yolo_root / "valid")
    (yolo_root / "labels").rename(yolo_root / "v")
    (yolo_root / "valid" / "images").mkdir()
    for picture in (yolo_root / "valid").glob("*.png"):
        picture.rename(yolo_root / "valid" / "images" / picture.name)
    (yolo_root / "v").rename(yolo_root / "valid" / "labels")
    label_map = LabelMap((5, 8, 9), ("dog", "car", "cat"))
    split = load_split(evaluation(root=str(yolo_root)), saved(tmp_path, format="coco"), label_map)
    assert split.labels.tolist() == [2, 0, 1] * 10
    assert split.label_map == LabelMap((1, 2, 0), ("dog", "car", "cat"))  # results in YOLO's numbers
