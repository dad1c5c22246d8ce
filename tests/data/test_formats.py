"""One data set as COCO, YOLO, VOC and CSV: the same tensors, and so the same first loss."""

import json
import os
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pytest
import torch

from rfdetr_train.config import AugmentationConfig
from rfdetr_train.criterion import Criterion
from rfdetr_train.data.loader import TrainLoader, evaluation_batches
from rfdetr_train.data.transforms import normalise
from rfdetr_train.matcher import match
from rfdetr_train.models.rfdetr import build_model

NAMES = {4: "ant", 9: "bee", 30: "cow & dog"}  # in one order by id and by name
RECIPE = AugmentationConfig(name="reference", horizontal_flip=0.5, resize_crop=0.5)


def by_picture(table: dict) -> list[tuple[dict, list[tuple[str, list]]]]:
    """Pictures with the class names and boxes (xywh) on them."""
    names = {category["id"]: category["name"] for category in table["categories"]}
    boxes: dict[int, list] = {image["id"]: [] for image in table["images"]}
    for a in table["annotations"]:
        boxes[a["image_id"]].append((names[a["category_id"]], a["bbox"]))
    return [(image, boxes[image["id"]]) for image in table["images"]]


def link(picture: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(picture)


def to_yolo(root: Path, split: str, table: dict, source: Path) -> None:
    names = sorted(category["name"] for category in table["categories"] if category["id"])  # 0 is BCCD's group
    for image, boxes in by_picture(table):
        link(source / image["file_name"], root / split / "images" / image["file_name"])
        file = root / split / "labels" / f"{Path(image['file_name']).stem}.txt"
        file.parent.mkdir(exist_ok=True)
        wide, high = image["width"], image["height"]
        lines = [
            f"{names.index(name)} {(x + w / 2) / wide!r} {(y + h / 2) / high!r} {w / wide!r} {h / high!r}\n"
            for name, (x, y, w, h) in boxes
        ]
        file.write_text("".join(lines))
    (root / "data.yaml").write_text(json.dumps({"names": names, "train": "../train/images", "val": "../valid/images"}))


def to_voc(root: Path, split: str, table: dict, source: Path) -> None:
    for image, boxes in by_picture(table):
        link(source / image["file_name"], root / "JPEGImages" / image["file_name"])
        objects = [
            f"<object><name>{escape(name)}</name><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + w}</xmax>"
            f"<ymax>{y + h}</ymax></bndbox></object>"
            for name, (x, y, w, h) in boxes
        ]
        size = f"<size><width>{image['width']}</width><height>{image['height']}</height></size>"
        file = root / "Annotations" / f"{Path(image['file_name']).stem}.xml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"<annotation>{size}{''.join(objects)}</annotation>")
    stems = [Path(image["file_name"]).stem for image in table["images"]]
    (root / "ImageSets" / "Main").mkdir(parents=True, exist_ok=True)
    (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(stems))


def to_csv(root: Path, split: str, table: dict, source: Path) -> None:
    lines = []
    for image, boxes in by_picture(table):
        link(source / image["file_name"], root / split / image["file_name"])
        lines += [f"{image['file_name']},{x},{y},{x + w},{y + h},{name}" for name, (x, y, w, h) in boxes]
        lines += [] if boxes else [f"{image['file_name']},,,,,"]
    (root / f"{split}.csv").write_text("\n".join(lines))


WRITERS = {"yolo": to_yolo, "voc": to_voc, "csv": to_csv}


def write_all(coco_root: Path, root: Path) -> None:
    for split in ("train", "valid"):
        table = json.loads((coco_root / split / "_annotations.coco.json").read_text())
        for name, write in WRITERS.items():
            (root / name).mkdir(parents=True, exist_ok=True)
            write(root / name, split, table, coco_root / split)
    (root / "coco").symlink_to(coco_root)


@pytest.fixture
def synthetic_root(tmp_path, coco_table, write_split):
    """Boxes at the edges, beyond them, of no width; a picture without any."""
    categories = [{"id": category_id, "name": name} for category_id, name in NAMES.items()]
    pictures = {
        "{} a.png": [(30, [0, 0, 100, 100]), (4, [90, 70, 15, 20]), (9, [33, 17, 41, 29])],
        "{} b c.png": [],
        "{} d.png": [(9, [99, 99, 1, 1]), (4, [20, 20, 0, 30]), (30, [13, 57, 7, 3])],
    }
    for split in ("train", "valid"):
        named = {name.format(split): boxes for name, boxes in pictures.items()}
        write_split(tmp_path / "source", split, coco_table(named, categories))
    return tmp_path / "source"


@pytest.fixture
def bccd_root():
    folder = os.environ.get("RFDETR_TRAIN_BCCD")
    if not folder:
        pytest.skip("RFDETR_TRAIN_BCCD does not name the folder of the BCCD photographs")
    return Path(folder)


def tensors_of(dataset, steps: int = 3) -> list[torch.Tensor]:
    """The first training steps and the first validation batch."""
    loader = TrainLoader(
        dataset.splits["train"], RECIPE, [64], batch_size=2, accumulation_steps=1, seed=0, num_workers=0
    )
    with loader:
        batches = [step[0] for _, step in zip(range(steps), loader.epoch(0), strict=False)]
    batches.append(next(evaluation_batches(dataset.splits["valid"], 64, batch_size=3, num_workers=0)))
    return [t for b in batches for t in (b.images, *(x[key] for x in b.targets for key in ("boxes_cxcywh", "labels")))]


def first_loss(dataset, config) -> torch.Tensor:
    torch.manual_seed(0)
    model = build_model(config, num_classes=len(dataset.label_map.names))
    loader = TrainLoader(
        dataset.splits["train"], RECIPE, [64], batch_size=2, accumulation_steps=1, seed=0, num_workers=0
    )
    with loader:
        (batch,) = next(loader.epoch(0))
    num_boxes = sum(len(target["labels"]) for target in batch.targets)
    return Criterion(config.num_queries, match)(model(normalise(batch.images)), batch.targets, num_boxes)["loss"]


def check_all_formats(root: Path, read, config) -> None:
    datasets = {name: read(root / name, allow_outside_root=True) for name in ("coco", *WRITERS)}
    assert {name: dataset.format for name, dataset in datasets.items()} == {name: name for name in datasets}
    coco = datasets.pop("coco")
    tensors, loss = tensors_of(coco), first_loss(coco, config)
    for name, dataset in datasets.items():
        assert dataset.label_map.names == coco.label_map.names, name
        assert dataset.dropped == coco.dropped, name
        for split, theirs in dataset.splits.items():
            ours = coco.splits[split]
            for i in range(len(ours)):
                assert np.array_equal(theirs.record(i).boxes_xyxy, ours.record(i).boxes_xyxy), (name, split, i)
        assert all(torch.equal(a, b) for a, b in zip(tensors_of(dataset), tensors, strict=True)), name
        assert first_loss(dataset, config) == loss, name


def test_a_small_set_in_four_formats(synthetic_root, tmp_path, read, small_config):
    write_all(synthetic_root, tmp_path)
    check_all_formats(tmp_path, read, small_config())


@pytest.mark.parametrize("folder", ["数据 集/é#1 (копия)", "a,b=c/{0} %20 [x]*?"])
def test_any_root_in_any_spelling(synthetic_root, tmp_path, read, monkeypatch, folder):
    """Absolute, relative, with a slash behind it, through a link: the same data set, its pictures found."""
    write_all(synthetic_root, tmp_path / folder)
    (tmp_path / "link").symlink_to(tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    for name in ("coco", *WRITERS):
        truth = read(tmp_path / folder / name, allow_outside_root=True).splits["train"].to_coco()
        for root in (f"{folder}/{name}", f"./{folder}/{name}/", f"{tmp_path}/{folder}/{name}/", f"link/{name}"):
            train = read(root, allow_outside_root=True).splits["train"]  # the pictures are links
            assert train.to_coco() == truth, root
            assert all(train.path(i).is_file() for i in range(len(train))), root


def test_bccd_in_four_formats(bccd_root, tmp_path, read, small_config):
    write_all(bccd_root, tmp_path)
    check_all_formats(tmp_path, read, small_config())
