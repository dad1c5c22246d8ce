"""Small COCO data sets, written on the spot: pictures of 100x100 pixels with a filled rectangle per box."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw

from rfdetr_train.config import DataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.sample import Split
from rfdetr_train.evaluation.coco_metrics import CocoEvaluator
from rfdetr_train.evaluation.predictions import Predictions

RED = (200, 30, 30)


@pytest.fixture
def read():
    """`read(root, key=value, ...)`: the data set there, its format found out unless it is given."""

    def read_it(root, splits=("train", "valid"), **keys):
        return read_dataset(DataConfig(name="auto", root=str(root), **keys), splits)

    return read_it


@pytest.fixture
def write_picture():
    def write(path: Path, boxes_xywh=(), size=(100, 100), colour=RED, **save_options) -> None:
        picture = Image.new("RGB", size, (60, 60, 60))
        for x, y, w, h in boxes_xywh:
            if w > 0 and h > 0:
                ImageDraw.Draw(picture).rectangle((x, y, x + w - 1, y + h - 1), fill=colour)
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, **save_options)

    return write


@pytest.fixture
def coco_table():
    """A COCO dict from boxes per picture: `{file_name: [(category_id, bbox), ...]}`."""

    def table(pictures: dict[str, list], categories: list[dict]) -> dict:
        images, annotations = [], []
        for image_id, (file_name, boxes) in enumerate(pictures.items(), start=1):
            images.append({"id": image_id, "file_name": file_name, "width": 100, "height": 100})
            for category_id, bbox in boxes:
                number = len(annotations) + 1
                annotations.append({"id": number, "image_id": image_id, "category_id": category_id, "bbox": bbox})
        return {"images": images, "annotations": annotations, "categories": categories}

    return table


@pytest.fixture
def write_split(write_picture):
    """Write a split in Roboflow's layout: the table, and (unless pictures=False) a picture for each of its images."""

    def write(root: Path, split: str, table: dict, pictures: bool = True) -> Path:
        folder = root / split
        folder.mkdir(parents=True, exist_ok=True)
        for image in table["images"] if pictures else []:
            boxes = [a["bbox"] for a in table["annotations"] if a.get("bbox") and a["image_id"] == image["id"]]
            write_picture(folder / image["file_name"], boxes, (image["width"], image["height"]))
        file = folder / "_annotations.coco.json"
        file.write_text(json.dumps(table), encoding="utf-8")
        return file

    return write


@pytest.fixture
def write_simple(coco_table, write_split):
    """Write train and valid of one class with the given boxes in each split's one picture; returns the table."""

    def write(root: Path, boxes=((10, 10, 30, 20),), file_name="a.png", pictures: bool = True) -> dict:
        table = coco_table({file_name: [(1, list(box)) for box in boxes]}, [{"id": 1, "name": "cell"}])
        for split in ("train", "valid"):
            write_split(root, split, table, pictures)
        return table

    return write


@pytest.fixture
def score():
    """`score(split)`: metrics and results where every box is detected with score 0.9."""

    def score_it(split: Split):
        detections = []
        for index in range(len(split)):
            boxes, labels = (torch.from_numpy(column) for column in split.record(index)[3:])
            detections.append({"boxes_xyxy": boxes, "labels": labels, "scores": torch.full((len(labels),), 0.9)})
        found = Predictions.from_detections(dict(zip(split.image_ids, detections, strict=True)), split.label_map)
        return CocoEvaluator(split.to_coco()).evaluate(found), found.to_results()

    return score_it
