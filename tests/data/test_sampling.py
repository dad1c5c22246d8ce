"""Repeat factors, worked by hand; the negatives' place in a split."""

import logging
from pathlib import Path

import numpy as np
import pytest

from rfdetr_train.config import DataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.negatives import with_negatives
from rfdetr_train.data.sample import Dataset
from rfdetr_train.data.sampling import draws_per_picture
from rfdetr_train.errors import UserError

CATEGORIES = [{"id": 1, "name": "ant"}, {"id": 2, "name": "bee"}, {"id": 3, "name": "cow"}]
BOX = [10, 10, 30, 20]


@pytest.fixture
def root(tmp_path, coco_table, write_split):
    """16 pictures: ants (twice each) on nine, bees on four, a cow beside a bee; the last three have no box."""
    pictures: dict[str, list] = {f"{n:02d}.png": [(1, BOX), (1, BOX)] for n in range(9)}
    pictures |= {f"{n:02d}.png": [(2, BOX)] for n in range(9, 13)}
    pictures["12.png"].append((3, BOX))
    pictures |= {f"{n:02d}.png": [] for n in range(13, 16)}
    write_split(tmp_path / "set", "train", coco_table(pictures, CATEGORIES))
    write_split(tmp_path / "set", "valid", coco_table({"v.png": [(1, BOX)]}, CATEGORIES))
    return tmp_path / "set"


def draws(root: Path, **keys) -> list[float] | None:
    config = DataConfig("coco", format="coco", root=str(root), **keys)
    found = draws_per_picture(read_dataset(config).splits["train"], config)
    return None if found is None else found.tolist()


def joined(root: Path, folder: Path) -> Dataset:
    return with_negatives(read_dataset(DataConfig("coco", format="coco", root=str(root))), folder)


def test_repeat_factors_by_hand(root, caplog):
    """t = 1/4: 9/16 and 4/16 are not below it, 1/16 is: sqrt(4) = 2, for the picture and so for its bee too."""
    assert draws(root) is None
    with caplog.at_level(logging.INFO):
        assert draws(root, repeat_threshold=0.25) == [1.0] * 12 + [2.0] + [1.0] * 3
    assert "17 pictures out of 16; with classes repeated: cow x2.00" in caplog.text
    half = draws(root, repeat_threshold=0.5, background=0.5)
    assert half == pytest.approx([1.0] * 9 + [2**0.5] * 3 + [8**0.5] + [0.5] * 3)


def test_pictures_without_boxes(root):
    assert draws(root, background=0.0) == [1.0] * 13 + [0.0] * 3
    assert draws(root, background=0.25)[13:] == [0.25] * 3


def test_negatives_join_train_and_only_train(root, write_picture, tmp_path):
    write_picture(tmp_path / "streets/a.png", size=(60, 40))
    write_picture(tmp_path / "streets/deeper/b.JPG", size=(30, 50))
    (tmp_path / "streets/notes.txt").write_text("no picture")
    dataset = check_images(joined(root, tmp_path / "streets"), "error")
    train = dataset.splits["train"]
    assert (len(train), len(dataset.splits["valid"])) == (18, 1)
    assert [train.path(index) for index in (16, 17)] == [tmp_path / "streets/a.png", tmp_path / "streets/deeper/b.JPG"]
    assert train.record(16).size_px == (40, 60)
    assert train.record(17).boxes_xyxy.shape == (0, 4)
    assert len(set(train.image_ids.tolist())) == 18
    assert train.path(3) == root / "train/03.png"
    found = draws_per_picture(train, DataConfig("coco", format="coco", root=str(root), background=0.5))
    assert found is not None
    assert np.array_equal(found[13:], np.full(5, 0.5))


def test_negatives_that_are_no_negatives(root, tmp_path):
    with pytest.raises(UserError, match=r"no such folder, or no picture"):
        joined(root, tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"00\.png is in the train split"):
        joined(root, root / "train")
    with pytest.raises(UserError, match=r"v\.png is in the valid split"):
        joined(root, root / "valid")


def test_a_broken_negative_goes_by_on_error(root, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.jpg").write_bytes(b"no picture")
    dataset = joined(root, tmp_path / "bad")
    with pytest.raises(UserError, match=r"a\.jpg"):
        check_images(dataset, "error")
    assert len(check_images(dataset, "skip").splits["train"]) == 16
