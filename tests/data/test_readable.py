"""Pictures that go or break while a run goes on, under data.on_error=skip."""

import logging
from dataclasses import replace

import pytest
import torch

from rfdetr_train.config import AugmentationConfig, ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.image_file import read_image
from rfdetr_train.data.loader import TrainLoader, evaluation_batches
from rfdetr_train.data.readable import ReadablePictures
from rfdetr_train.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # machines with one core

PLAIN = AugmentationConfig(name="none")
MIXED = AugmentationConfig(name="mixed", mosaic=0.7, copy_paste=0.7, horizontal_flip=0.5)


@pytest.fixture
def split(tmp_path):
    """Six pictures that were whole when they were checked; number 2 has gone since, and 3 is cut."""
    data = ShapesDataConfig(root=str(tmp_path), train_images=6, valid_images=1, image_size_px=64)
    split = check_images(read_dataset(data), "skip").splits["train"]
    split.path(2).unlink()
    split.path(3).write_bytes(split.path(3).read_bytes()[:300])
    return split


def two_epochs(split, recipe, num_workers=0):
    """(images, ids, boxes) of every batch, and whichever picture comes first in the order."""
    options = {"batch_size": 2, "accumulation_steps": 1, "seed": 0, "num_workers": num_workers}
    with TrainLoader(split, recipe, [64], **options) as loader:
        batches = [batch for epoch in (0, 1) for window in loader.epoch(epoch) for batch in window]
    ids = [target["image_id"] for batch in batches for target in batch.targets]
    boxes = torch.cat([target["boxes_cxcywh"] for batch in batches for target in batch.targets])
    return torch.cat([batch.images for batch in batches]), ids, boxes


def test_the_next_readable_picture_takes_the_place_in_training(split, caplog):
    """With its own boxes; the pictures of the others do not change, and each file is named once, with a count."""
    images, ids, _ = two_epochs(split, PLAIN)
    whole = replace(split, skips_unreadable=False)
    for index in (2, 3):
        whole.path(index).write_bytes(whole.path(4).read_bytes())
    expected, planned, _ = two_epochs(whole, PLAIN)
    assert sorted(planned) == sorted(2 * split.image_ids.tolist())
    stand_in = {split.image_ids[2]: split.image_ids[4], split.image_ids[3]: split.image_ids[4]}
    assert ids == [stand_in.get(image_id, image_id) for image_id in planned]
    assert torch.equal(images, expected)
    told = [record for record in caplog.records if "PICTURE SKIPPED" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING] * 2
    assert {name for name in (split.path(2).name, split.path(3).name) if name in caplog.text} == {
        split.path(2).name, split.path(3).name,
    }  # fmt: skip
    assert "number 2 since the check" in told[1].message


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_same_seed_gives_the_same_bits_with_any_number_of_workers(split, num_workers, caplog):
    alone, served = two_epochs(split, MIXED), two_epochs(split, MIXED, num_workers)
    assert torch.equal(alone[0], served[0])
    assert alone[1] == served[1]
    assert torch.equal(alone[2], served[2])
    assert caplog.text.count("PICTURE SKIPPED") == 4  # two of each loader


def test_a_folder_that_has_gone_ends_the_run(split):
    for index in (0, 1, 4, 5):
        split.path(index).unlink()
    with pytest.raises(UserError, match=r"nor can the 5 pictures next to it be read.*resume=auto"):
        two_epochs(split, PLAIN)


def test_without_skip_the_message_names_file_and_remedy(split):
    strict = replace(split, skips_unreadable=False)
    pictures = ReadablePictures(strict, strict.read_image)
    with pytest.raises(UserError, match=r"does not exist; it could be read before the run.*data\.on_error=skip"):
        pictures.at_or_after(2)


def test_evaluation_goes_on_without_them(split, caplog):
    """A batch of two that are both missing is empty."""
    batches = list(evaluation_batches(split, 64, batch_size=2, num_workers=0))
    assert [len(batch.images) for batch in batches] == [2, 0, 2]
    assert batches[1].images.shape == (0, 3, 64, 64)
    ids = [target["image_id"] for batch in batches for target in batch.targets]
    assert ids == split.image_ids[[0, 1, 4, 5]].tolist()
    assert torch.equal(batches[2].images[1], read_image(split.path(5)))  # 64 px of 64
    assert caplog.text.count("PICTURE SKIPPED") == 2
