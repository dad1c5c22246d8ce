"""What is shown before a run is what the run trains on."""

from pathlib import Path

import pytest
import torch

from rfdetr_train.config import AugmentationConfig, ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.loader import TrainLoader
from rfdetr_train.engine.run_plots import augmented_pictures
from rfdetr_train.loggers.sheet import draw_sheet

FLIP = AugmentationConfig(name="flip", horizontal_flip=0.5)


@pytest.mark.parametrize(("asked", "given"), [(4, 4), (9, 6)])
def test_the_first_pictures_of_a_run(tmp_path: Path, asked: int, given: int) -> None:
    data = ShapesDataConfig(root=str(tmp_path / "shapes"), train_images=6, valid_images=1, image_size_px=64)
    split = read_dataset(data).splits["train"]
    pictures = augmented_pictures(split, FLIP, [32], num_pictures=asked, seed=3)
    with TrainLoader(split, FLIP, [32], batch_size=6, accumulation_steps=1, seed=3, num_workers=0) as loader:
        ((batch,),) = loader.epoch(0)
    assert len(pictures) == given
    for picture, image, target in zip(pictures, batch.images, batch.targets, strict=False):
        assert torch.equal(picture.image, image)
        cx, cy, w, h = (target["boxes_cxcywh"].double() * 32).unbind(dim=1)
        expected = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], dim=1)
        torch.testing.assert_close(picture.truth_boxes_xyxy.double(), expected, atol=1e-5, rtol=0)
        assert torch.equal(picture.truth_labels, target["labels"])
    draw_sheet(tmp_path / "sheet.png", pictures, split.label_map.names)
    assert (tmp_path / "sheet.png").stat().st_size > 1000
