"""The check before training."""

import logging
import os

import numpy as np
import pytest
from PIL import Image

from rfdetr_train.data import image_file
from rfdetr_train.data.image_check import check_images
from rfdetr_train.data.image_file import read_image
from rfdetr_train.errors import UserError

FIVE = ("half.jpg", "empty.jpg", "html.jpg", "missing.jpg", "folder.jpg")
THREE = ("pipe.png", "half.webp", "link.tif")


@pytest.fixture
def broken_set(tmp_path, coco_table, write_split, write_simple, read):
    """A train split with two good pictures among five bad ones."""
    write_simple(tmp_path)
    names = ("good1.jpg", *FIVE, "good2.jpg")
    pictures = {name: [(1, [10 * i, 10, 9, 9])] for i, name in enumerate(names)}
    write_split(tmp_path, "train", coco_table(pictures, [{"id": 1, "name": "cell"}]))
    train = tmp_path / "train"
    half = (train / "half.jpg").read_bytes()
    (train / "half.jpg").write_bytes(half[: len(half) // 2])
    (train / "empty.jpg").write_bytes(b"")
    (train / "html.jpg").write_bytes(b"<html></html>")
    (train / "missing.jpg").unlink()
    (train / "folder.jpg").unlink()
    (train / "folder.jpg").mkdir()
    return read(tmp_path)


def test_error_lists_all_five_with_reasons(broken_set):
    with pytest.raises(UserError, match="train: 5 of 7 pictures cannot be read") as caught:
        check_images(broken_set, "error")
    message = str(caught.value)
    assert [name for name in FIVE if str(broken_set.splits["train"].folder / name) in message] == list(FIVE)
    assert "data.on_error=skip" in message
    assert "does not exist" in message
    assert "good" not in message


def test_skip_leaves_them_out_and_says_so(broken_set, caplog):
    dataset = check_images(broken_set, "skip")
    train = dataset.splits["train"]
    assert [train.path(i).name for i in range(len(train))] == ["good1.jpg", "good2.jpg"]
    assert [train.record(i).boxes_xyxy[:, 0].tolist() for i in range(2)] == [[0], [60]]
    assert dataset.dropped == {"train": {"unreadable_pictures": 5}, "valid": {}}
    truth = train.to_coco()
    assert [a["image_id"] for a in truth["annotations"]] == [1, 7]
    assert [a["id"] for a in truth["annotations"]] == [1, 2]
    assert "5 of 7 pictures cannot be read and are left out" in caplog.text
    assert "html.jpg" in caplog.text


def test_three_more(tmp_path, coco_table, write_split, write_simple, read):
    """A pipe, which would be waited for; half a file of a format without an end mark; a link to nowhere."""
    write_simple(tmp_path)
    pictures = {name: [(1, [10, 10, 9, 9])] for name in ("good.png", *THREE)}
    write_split(tmp_path, "train", coco_table(pictures, [{"id": 1, "name": "cell"}]))
    pipe, half, link = (tmp_path / "train" / name for name in THREE)
    half.write_bytes(half.read_bytes()[:-20])
    for path in (pipe, link):
        path.unlink()
    os.mkfifo(pipe)
    link.symlink_to("elsewhere.tif")
    with pytest.raises(UserError, match="train: 3 of 4 pictures cannot be read") as caught:
        check_images(read(tmp_path), "error")
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(": ")[0].strip() for line in lines] == [str(pipe), str(half), str(link)]
    assert [len(split) for split in check_images(read(tmp_path), "skip").splits.values()] == [1, 1]


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_a_fault_in_the_middle_is_found_where_broken_pictures_are_skipped(
    tmp_path, coco_table, write_split, write_simple, read, ending
):
    """Its end is as it should be, so without decoding it looks whole."""
    write_simple(tmp_path)
    pictures = {name: [(1, [10, 10, 9, 9])] for name in ("good.png", f"bad.{ending}")}
    write_split(tmp_path, "train", coco_table(pictures, [{"id": 1, "name": "cell"}]))
    bad = tmp_path / "train" / f"bad.{ending}"
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    Image.fromarray(noise).save(bad)
    content = bytearray(bad.read_bytes())
    if ending == "png":
        content[len(content) // 2] ^= 255
    else:
        content[content.index(b"\xff\xc4") + 5 : len(content) // 2] = b""  # a table of codes, and half of the codes
    bad.write_bytes(content)
    assert len(check_images(read(tmp_path), "error").splits["train"]) == 2
    with pytest.raises(UserError, match="cannot be read as a picture"):
        read_image(bad)
    assert len(check_images(read(tmp_path), "skip").splits["train"]) == 1


def test_the_limit_of_megapixels_is_the_configs(tmp_path, write_simple, read):
    write_simple(tmp_path)
    dataset = read(tmp_path)
    with pytest.raises(UserError, match=r"a\.png: 100x100 pixels are more than data\.max_megapixels=0\.009;"):
        check_images(dataset, "error", max_megapixels=0.009)
    checked = check_images(dataset, "error", max_megapixels=0.01)
    assert [split.max_megapixels for split in checked.splits.values()] == [0.01, 0.01]


def test_nothing_left_is_refused(tmp_path, write_simple, read):
    write_simple(tmp_path)
    (tmp_path / "train" / "a.png").unlink()
    with pytest.raises(UserError, match="so that none is left"):
        check_images(read(tmp_path), "skip")


def test_another_size_than_annotated_is_a_warning(tmp_path, write_simple, caplog, read):
    write_simple(tmp_path)
    Image.new("RGB", (200, 300)).save(tmp_path / "train" / "a.png")
    dataset = read(tmp_path)
    assert len(check_images(dataset, "error").splits["train"]) == 1
    (record,) = (r for r in caplog.records if r.levelno == logging.WARNING)
    assert f"{tmp_path / 'train' / 'a.png'}: annotated as 100x100, but the picture is 200x300" in record.getMessage()


def test_progress_counts_over_all_splits(tmp_path, write_simple, read, monkeypatch):
    monkeypatch.setattr(image_file, "_AT_ONCE", 1)  # pictures between two reports
    write_simple(tmp_path)
    seen = []
    check_images(read(tmp_path), "error", lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_a_picture_in_two_splits(tmp_path, write_simple, read, caplog):
    write_simple(tmp_path)
    valid = tmp_path / "valid" / "a.png"
    valid.unlink()
    valid.symlink_to(tmp_path / "train" / "a.png")
    check_images(read(tmp_path), "error")
    assert (
        f"1 PICTURES ARE IN TRAIN AND IN VALID, so the score says little of new ones; such as {tmp_path}" in caplog.text
    )


def test_the_broken_pictures_of_all_splits_at_once(tmp_path, write_simple, read):
    write_simple(tmp_path)
    for split in ("train", "valid"):
        (tmp_path / split / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"(?s)train: 1 of 1 pictures.*valid: 1 of 1 pictures"):
        check_images(read(tmp_path), "error")
