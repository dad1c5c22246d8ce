"""The cache gives what the files give, notices what has changed, and says what does not fit."""

import os
import re
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rfdetr_train.data import picture_cache
from rfdetr_train.data.picture_cache import PictureCache, open_cache
from rfdetr_train.data.sample import FlatStrings, Split
from rfdetr_train.errors import UserError

NAMES = ("tall.jpg", "wide.png", "small.jpg")
SIZES = ((900, 700), (640, 720), (120, 100))  # height, width; only the first is reduced for 150 px, to 450x350


@pytest.fixture
def split(tmp_path: Path, coco_table, write_split, write_simple, read) -> Split:
    """Three pictures of noise."""
    write_simple(tmp_path / "set")
    table = coco_table({name: [(1, [10, 10, 20, 20])] for name in NAMES}, [{"id": 1, "name": "cell"}])
    for image, (height, width) in zip(table["images"], SIZES, strict=True):
        image |= {"height": height, "width": width}
    write_split(tmp_path / "set", "train", table)
    rng = np.random.default_rng(0)
    for name, size in zip(NAMES, SIZES, strict=True):
        noise = rng.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "set" / "train" / name)
    return read(tmp_path / "set").splits["train"]


def opened(split: Split, kind: str, folder: Path) -> tuple[PictureCache, list[int]]:
    """The cache for views of 150 px, and what its progress said."""
    said: list[int] = []
    return open_cache(split, 150, kind, folder / "cache", lambda done, total: said.append(done)), said


def overwrite(path: Path, keep_time: bool) -> None:
    """Other bytes of the same length."""
    before = path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + (0 if keep_time else 1)))


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_the_pictures_are_those_of_the_files(split, tmp_path, kind):
    expected = [split.read_image(index, 150) for index in range(3)]
    assert expected[0].shape == (3, 450, 350)
    cache, said = opened(split, kind, tmp_path)
    assert said == [1, 2, 3]
    for index in range(3):
        overwrite(split.path(index), keep_time=True)  # so what is read comes from the cache
    for index in (2, 0, 1, 0):
        image = cache.read_image(index)
        assert torch.equal(image, expected[index])
        assert image.stride() == expected[index].stride()


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_a_changed_picture_is_read_anew_and_a_lost_one_is_an_error(split, tmp_path, kind):
    cache, _ = opened(split, kind, tmp_path)
    Image.new("RGB", (50, 40), (1, 2, 3)).save(split.path(1))
    assert cache.read_image(1).shape == (3, 40, 50)
    overwrite(split.path(0), keep_time=False)
    split.path(2).unlink()
    for index, reason in ((0, r"tall\.jpg: cannot be read"), (2, r"small\.jpg: does not exist")):
        with pytest.raises(UserError, match=reason):
            cache.read_image(index)


def test_a_later_run_finds_the_file_on_disk(split, tmp_path):
    first, _ = opened(split, "disk", tmp_path)
    second, said = opened(split, "disk", tmp_path)
    assert said == []
    assert torch.equal(first.read_image(0), second.read_image(0))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_later_run_with_a_changed_picture_makes_the_file_anew(split, tmp_path, caplog):
    before, _ = opened(split, "disk", tmp_path)
    (old,) = (tmp_path / "cache").iterdir()
    expected = before.read_image(2).clone()
    Image.new("RGB", (100, 120), (9, 9, 9)).save(split.path(0), "PNG")
    after, said = opened(split, "disk", tmp_path)
    assert said == [1, 2, 3]
    assert after.read_image(0).flatten()[:3].tolist() == [9, 9, 9]
    assert list((tmp_path / "cache").iterdir()) != [old]
    assert torch.equal(before.read_image(2), expected)  # a run that still goes on keeps its own
    with caplog.at_level("INFO"):
        open_cache(split, 151, "disk", tmp_path / "cache", lambda done, total: None)
    assert len(list((tmp_path / "cache").iterdir())) == 2  # one for each purpose


def test_a_broken_picture_leaves_nothing_behind(split, tmp_path):
    split.path(1).write_bytes(split.path(1).read_bytes()[:-3000])
    with pytest.raises(UserError, match=r"wide\.png"):
        opened(split, "disk", tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_does_not_fit_is_refused_with_both_numbers(split, tmp_path, monkeypatch):
    """A thousand times 450x350 + 640x720 + 120x100 pixels of three bytes are 1.9 GB; four fifths of 2 GB are 1.6."""
    many = replace(
        split,
        file_names=FlatStrings(NAMES * 1000),
        image_ids=np.arange(3000),
        sizes_px=np.tile(split.sizes_px, (1000, 1)),
        offsets=np.zeros(3001, dtype=np.int64),
    )
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 2_000_000_000))
    monkeypatch.setattr(picture_cache, "_free_memory", lambda: 2_000_000_000)
    for kind, where in (("disk", tmp_path / "cache"), ("ram", "memory")):
        words = (
            f"data.cache={kind}: the 3000 decoded pictures of train take 1.9 GB, and 80% of the 2.0 GB that are free"
        )
        with pytest.raises(UserError, match=re.escape(f"{words} in {where}")):
            opened(many, kind, tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setattr(picture_cache, "_free_memory", lambda: 2_400_000)
    opened(split, "ram", tmp_path)


def test_the_file_is_as_large_as_expected(split, tmp_path):
    opened(split, "disk", tmp_path)
    (file,) = (tmp_path / "cache").iterdir()
    assert file.stat().st_size == 3 * 24 + 3 * (450 * 350 + 640 * 720 + 120 * 100)


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_cache, "_CONTROL_GROUP", tmp_path)
    of_the_machine = picture_cache._free_memory()
    assert of_the_machine > 100e6
    (tmp_path / "memory.stat").write_text("anon 3000000\nfile 90000000\nshmem 2000000\n")
    (tmp_path / "memory.max").write_text("50000000\n")
    assert picture_cache._free_memory() == 45_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert picture_cache._free_memory() > 100e6


def test_a_folder_that_cannot_be_written(split, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.cache_dir=.*cannot be written"):
        opened(split, "disk", tmp_path / "file" / "pictures")
