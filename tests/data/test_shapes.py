"""The demo set."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from rfdetr_train.config import ShapesDataConfig
from rfdetr_train.data.dataset import read_dataset
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.image_file import read_image
from rfdetr_train.data.shapes import FORMS, Shape, draw_picture, draw_shape, write_shapes
from rfdetr_train.errors import UserError


@pytest.fixture
def config(tmp_path):
    return ShapesDataConfig(root=str(tmp_path / "shapes"), train_images=6, valid_images=3, image_size_px=96)


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(p.relative_to(folder)), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]


def test_it_is_a_data_set_like_any_other(config):
    dataset = check_images(read_dataset(config), "error")
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 6, "valid": 3}
    assert dataset.label_map.names == FORMS
    for split in dataset.splits.values():
        assert set(np.diff(split.offsets)) <= set(range(1, 9))
        assert read_image(split.path(0)).shape == (3, 96, 96)
    assert not any(dataset.dropped.values())


def test_same_seed_same_bytes(config, tmp_path):
    first = digest(write_shapes(config))
    assert digest(write_shapes(replace(config, root=str(tmp_path / "again")))) == first
    assert digest(write_shapes(replace(config, shapes_seed=1))) != first
    longer = digest(write_shapes(replace(config, train_images=7)))
    assert len({*first} & {*longer}) == 6 + 4  # the first 6 pictures of train, and all of valid with its table


def test_it_is_written_once_and_never_stale(config):
    folder = write_shapes(config)
    before = os.stat(folder / "train" / "000000.jpg").st_mtime_ns
    assert write_shapes(config) == folder
    assert os.stat(folder / "train" / "000000.jpg").st_mtime_ns == before
    for change in ({"train_images": 5}, {"valid_images": 4}, {"image_size_px": 64}, {"shapes_seed": 3}):
        assert write_shapes(replace(config, **change)) != folder


def test_two_writers_at_once(config):
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(write_shapes, [config] * 4))
    (folder,) = folders
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_failed_writer_leaves_nothing(config, monkeypatch):
    monkeypatch.setattr("rfdetr_train.data.shapes.draw_picture", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_shapes(config)
    assert os.listdir(config.root) == []


@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("side", [10, 33])
def test_boxes_are_tight(form, side):
    picture = Image.new("RGB", (64, 64))
    draw_shape(picture, Shape(form, 7, 20, side), np.random.default_rng(0))
    assert picture.getbbox() == (7, 20, 7 + side, 20 + side)


def test_sizes_and_forms_vary():
    shapes = [shape for i in range(60) for shape in draw_picture(128, np.random.default_rng(i))[1]]
    sides = [shape.side for shape in shapes]
    assert min(sides) <= 16
    assert max(sides) >= 48
    assert {shape.form for shape in shapes} == {0, 1, 2}
    assert all(min(s.left, s.top) >= 0 and max(s.left, s.top) + s.side <= 128 for s in shapes)


def test_an_unknown_kind_of_data_set(config):
    with pytest.raises(UserError, match="data=pictures: choose one of coco, yolo, voc, csv, auto, shapes"):
        replace(config, name="pictures")


def test_a_folder_of_other_things_is_left_alone(config, tmp_path):
    (tmp_path / "shapes" / "train").mkdir(parents=True)
    with pytest.raises(UserError, match="this folder holds train; add data=auto"):
        write_shapes(config)
    assert os.listdir(config.root) == ["train"]
