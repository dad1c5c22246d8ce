"""The way of boxes from the annotation through a view to results and back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from rfdetr_train.config import DataConfig, ModelConfig
from rfdetr_train.data.canvas import STRETCH, Placement
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.loader import evaluation_batches
from rfdetr_train.data.sample import Batch, Split
from rfdetr_train.engine.precision import Precision
from rfdetr_train.engine.validator import Validation, Validator
from rfdetr_train.errors import UserError
from rfdetr_train.loggers.progress import make_progress

SIZES = [(37, 101), (211, 64), (100, 100), (333, 500), (5, 240)]  # height, width


@pytest.fixture
def split(tmp_path: Path) -> Split:
    """Two boxes on each picture, one of them at its right border."""
    images, annotations = [], []
    for number, (height, width) in enumerate(SIZES, start=1):
        images.append({"id": number, "file_name": f"{number}.png", "height": height, "width": width})
        for box in ([1, 2, width // 3, height - 3], [width // 2, 0, width - width // 2, height]):
            annotation = {"id": len(annotations) + 1, "image_id": number, "category_id": 1 + len(annotations) % 2}
            annotations.append({**annotation, "bbox": box})
    categories = [{"id": 1, "name": "left"}, {"id": 2, "name": "right"}]
    for name in ("train", "valid"):
        (tmp_path / name).mkdir()
        for image in images:
            Image.new("RGB", (image["width"], image["height"])).save(tmp_path / name / image["file_name"])
        table = {"images": images, "annotations": annotations, "categories": categories}
        (tmp_path / name / "_annotations.coco.json").write_text(json.dumps(table))
    return read_dataset(DataConfig("coco", format="coco", root=str(tmp_path))).splits["valid"]


class Oracle(torch.nn.Module):
    """A detector that is told the truth of the next batches."""

    def __init__(self, batches: list[Batch]) -> None:
        super().__init__()
        self.batches = iter(batches)

    def forward(self, images: torch.Tensor, padding: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        batch = next(self.batches)
        logits, boxes = torch.full((len(images), 2, 3), -9.0), torch.zeros(len(images), 2, 4)
        for image, target in enumerate(batch.targets):
            boxes[image] = target["boxes_cxcywh"]
            logits[image, torch.arange(2), target["labels"]] = 2.0
        return {"logits": logits, "boxes_cxcywh": boxes}


def validate(
    split: Split, config: ModelConfig, oracle: Oracle, batch_size: int = 2, placement: Placement = STRETCH
) -> Validation:
    with make_progress("plain") as progress:
        validator = Validator(
            split,
            config,
            placement,
            Precision("fp32", torch.device("cpu")),
            progress,
            batch_size=batch_size,
            num_workers=0,
            max_dets=100,
        )
        return validator(oracle)


@pytest.fixture
def config(small_config) -> ModelConfig:
    return small_config(resolution=128, num_queries=2)


@pytest.mark.parametrize("aspect", [1.0, 1.5])
@pytest.mark.parametrize("letterbox", [False, True])
def test_the_truth_as_predictions_scores_one(split, config, letterbox, aspect):
    place = Placement(letterbox, 32, aspect)
    oracle = Oracle(list(evaluation_batches(split, 128, batch_size=2, num_workers=0, placement=place)))
    validation = validate(split, config, oracle, placement=place)
    assert validation.metrics.overall["AP"] == pytest.approx(1.0)
    for index, image_id in enumerate(split.image_ids.tolist()):
        found = validation.detections[image_id]
        order = found["boxes_xyxy"][:, 0].argsort()
        torch.testing.assert_close(
            found["boxes_xyxy"][order], torch.from_numpy(split.record(index).boxes_xyxy), rtol=0, atol=1e-3
        )


def test_a_score_is_of_the_pictures_that_could_be_read(split, config, caplog):
    """Picture 2 has gone since the check: found is all of the truth that is left, and how many are missing is said."""
    split = replace(split, skips_unreadable=True)
    split.path(1).unlink()
    batches = [batch for batch in evaluation_batches(split, 128, batch_size=1, num_workers=0) if batch.targets]
    validation = validate(split, config, Oracle(batches), batch_size=1)
    assert validation.metrics.overall["AP"] == pytest.approx(1.0)
    assert sorted(validation.detections) == [1, 3, 4, 5]
    assert [image["id"] for image in validation.evaluator.truth["images"]] == [1, 3, 4, 5]
    assert "valid: 1 of 5 PICTURES ARE MISSING IN THIS SCORE" in caplog.text
    for index in (0, 2, 3, 4):
        split.path(index).unlink()
    with pytest.raises(UserError, match="none of the 5 pictures of valid can be read any more"):
        validate(split, config, Oracle([]))
