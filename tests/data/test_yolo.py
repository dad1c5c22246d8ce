"""YOLO label files and data.yaml, each in all their spellings."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rfdetr_train.data.yolo import read_labels
from rfdetr_train.errors import UserError

NAMES = {0: "cat", 1: "dog"}
BOX = "0 0.5 0.5 0.2 0.4\n"


@pytest.fixture
def write_yolo(write_picture):
    """Write a data set with two pictures in train and one in valid; `yaml` None writes none."""

    def write(root: Path, yaml: str | None, layout: str = "{}/{}", label: str = BOX) -> None:
        for split, names in (("train", "ab"), ("valid", "c")):
            for name in names:
                write_picture(root / layout.format(split, "images") / f"{name}.png", [(40, 30, 20, 40)])
                text = root / layout.format(split, "labels") / f"{name}.txt"
                text.parent.mkdir(parents=True, exist_ok=True)
                text.write_text(label)
        if yaml is not None:
            (root / "data.yaml").write_text(yaml)

    return write


def content(dataset) -> list:
    """All that training sees of a data set."""
    records = [split.record(i) for split in dataset.splits.values() for i in range(len(split))]
    boxes = [(r.path.name, r.size_px, r.boxes_xyxy.tolist(), r.labels.tolist()) for r in records]
    return [dataset.label_map, boxes]


def labels_in(tmp_path, text: str):
    file = tmp_path / "a.txt"
    file.write_bytes(text.encode())
    return read_labels(file, NAMES)


@pytest.mark.parametrize(
    ("texts", "counts"),
    [
        ([b"0 .5 .5 .2 .2\n", b"", None, b" \n\t\n", b"\xef\xbb\xbf1 .5 .5 .2 .2\r\n"], [1, 0, 0, 0, 1]),
        (
            [b"0 .5 .5 .2 .2\r1 .1 .1 .1 .1\r", b"\xef\xbb\xbf", b"\r\n\r\n", None, b"\n\n1 .5 .5 .2 .2"],
            [2, 0, 0, 0, 1],
        ),
    ],
)
def test_label_files_present_and_not(tmp_path, write_yolo, write_picture, read, texts, counts):
    write_yolo(tmp_path, "names: [cat, dog]\ntrain: train/images\nval: valid/images\n")
    for number, text in enumerate(texts):
        write_picture(tmp_path / "valid" / "images" / f"{number}.png")
        if text is not None:
            (tmp_path / "valid" / "labels" / f"{number}.txt").write_bytes(text)
    valid = read(tmp_path).splits["valid"]
    assert [len(valid.record(i).labels) for i in range(5)] == counts
    assert valid.record(4).labels.tolist() == [1]


HEAD = "nc: 2\nnames: [cat, dog]\n"
PLAIN = f"{HEAD}train: train/images\nval: valid/images\n"


@pytest.mark.parametrize(
    "yaml",
    [
        "names: {0: cat, 1: dog}\ntrain: train/images\nval: valid/images\n",
        "train: train/images\nval: valid/images\nnames:\n  1: dog\n  0: cat\n",
        f"path: .\n{PLAIN}",
        f"path: {{root}}\n{PLAIN}",
        f"{HEAD}train: {{root}}/train/images\nval: {{root}}/valid/images\n",
        f"{HEAD}train: ../train/images\nval: ../valid/images\ntest: ../test/images\n",
        f"{HEAD}train: train/images/\nvalid: ./valid/images\ntest:\n",
        f"{HEAD}train: [train/images]\nval:\n  - valid/images\n",
        f"path: null\ntest: ~\nnc:\n{PLAIN[6:]}",
        f"{HEAD}train: train\nval: valid\n",
        f"{HEAD}train: lists/train.txt\nval: lists/valid.txt\n",
        f"{HEAD}train: train\\images\nval: valid\\images\n",
        HEAD,
    ],
)
def test_spellings_of_data_yaml(tmp_path, write_yolo, read, yaml):
    write_yolo(tmp_path / "plain", PLAIN)
    root = tmp_path / "other"
    write_yolo(root, yaml.replace("{root}", str(root)))
    (root / "lists").mkdir()
    (root / "lists" / "train.txt").write_text("train/images/a.png\n./train/images/b.png\n\n")
    (root / "lists" / "valid.txt").write_text(f"{root}/valid/images/c.png\r\n")
    assert content(read(root)) == content(read(tmp_path / "plain"))


@pytest.mark.parametrize("layout", ["{1}/{0}", "{0}", "{0}/deep/{1}", "images/{0}/{1}"])
def test_layouts(tmp_path, write_yolo, read, layout):
    write_yolo(tmp_path / "plain", PLAIN)
    folders = [layout.format(split, "images") for split in ("train", "valid")]
    write_yolo(tmp_path / "other", f"{HEAD}train: {folders[0]}\nval: {folders[1]}\n", layout)
    assert content(read(tmp_path / "other")) == content(read(tmp_path / "plain"))


@pytest.mark.parametrize(
    ("file", "split"), [("data.yml", "val"), ("dataset.yaml", "valid"), ("blood cells.yaml", "val")]
)
def test_other_file_names_and_val_folders(tmp_path, write_yolo, read, file, split):
    write_yolo(tmp_path / "plain", PLAIN)
    write_yolo(tmp_path / "other", None)
    (tmp_path / "other" / "valid").rename(tmp_path / "other" / "val")
    (tmp_path / "other" / file).write_text(f"{HEAD}train: train/images\n{split}: val/images\n")
    assert content(read(tmp_path / "other")) == content(read(tmp_path / "plain"))


def test_classes_txt_without_data_yaml(tmp_path, write_yolo, read):
    write_yolo(tmp_path / "plain", PLAIN)
    write_yolo(tmp_path / "other", None)
    (tmp_path / "other" / "classes.txt").write_text("cat\ndog\n")
    assert content(read(tmp_path / "other")) == content(read(tmp_path / "plain"))


def test_a_list_of_folders(tmp_path, write_yolo, write_picture, read):
    write_yolo(tmp_path, f"{HEAD}train: [train/images, more/images]\nval: valid/images\n")
    write_picture(tmp_path / "more" / "images" / "sub" / "z.png")
    train = read(tmp_path).splits["train"]
    assert [train.path(i).name for i in range(len(train))] == ["a.png", "b.png", "z.png"]


def test_sparse_numbers_are_category_ids(tmp_path, write_yolo, read):
    write_yolo(tmp_path, "names: {7: dog, 2: cat}\ntrain: train\nval: valid\n", label="7 .5 .5 .2 .2\n2 .2 .2 .1 .1")
    dataset = read(tmp_path)
    assert dataset.label_map == ((2, 7), ("cat", "dog"))
    assert dataset.splits["train"].record(0).labels.tolist() == [1, 0]
    assert [a["category_id"] for a in dataset.splits["valid"].to_coco()["annotations"]] == [7, 2]


def test_yaml_words_stay_words(tmp_path, write_yolo, read):
    write_yolo(tmp_path, "names: [no, 1.50, 2020-01-01]\ntrain: train\nval: valid\n")
    assert read(tmp_path).label_map.names == ("no", "1.50", "2020-01-01")


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        (f"nc: 3\n{PLAIN[6:]}", "nc: 3, but names has 2"),
        ("nc: 1\nnames: {0: a, 1: b, 2: c}\ntrain: train\n", "nc: 1, but names has 3"),
        ("train: train\nval: valid\n", "names must list the classes"),
        ("names: cat\ntrain: train\n", "names must list the classes"),
        ("names: [[cat]]\n", "names must list the classes"),
        ("names: {a: cat}\n", "must be whole numbers"),
        ("names: [cat]\nnc: [1]\n", "must be whole numbers"),
        ("names: {0: cat, 00: dog}\n", "must be different"),
        ("names: [cat\n", r"data\.yaml:\d:\d: not valid YAML"),
        ("- names\n", "must hold `key: value` lines"),
        ("names: [cat]\ntrain: {a: b}\n", "train must be a path or a list of paths"),
        ("names: [cat]\nkpt_shape: [17, 3]\ntrain: train\n", "key points"),
        ("names: [cat, cat]\ntrain: train\nval: valid\n", "categories 0 and 1 are both called 'cat'"),
        ("names: [cat]\ntrain: [train, nowhere]\nval: valid\n", "nowhere does not exist"),
        ("names: [cat]\ntrain: nowhere\nval: valid\n", "no train split"),
        ("names: [cat]\ntrain: train\nval: ../../nowhere\n", "no valid split"),
    ],
)
def test_faults_of_data_yaml(tmp_path, write_yolo, read, yaml, message):
    write_yolo(tmp_path / "set", yaml)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / "set", format="yolo")
    assert str(tmp_path / "set") in str(caught.value)


def test_an_alias_bomb_is_only_a_fault(tmp_path, write_yolo, read):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    write_yolo(tmp_path, f"{bomb}names: *a39\ntrain: train\n")
    with pytest.raises(UserError, match="names must list the classes"):
        read(tmp_path)


@pytest.mark.parametrize(
    "yaml",
    [
        f"path: {{elsewhere}}\n{PLAIN}",
        f"{HEAD}train: {{elsewhere}}/train/images\nval: valid/images\n",
        f"{HEAD}train: ../elsewhere/train/images\nval: valid/images\n",
    ],
)
def test_folders_outside_the_root_want_permission(tmp_path, write_yolo, read, yaml):
    write_yolo(tmp_path / "elsewhere", None)
    write_yolo(tmp_path / "set", yaml.replace("{elsewhere}", str(tmp_path / "elsewhere")))
    with pytest.raises(UserError, match=r"leads out of .* data\.allow_outside_root=true"):
        read(tmp_path / "set")
    train = read(tmp_path / "set", allow_outside_root=True).splits["train"]
    assert train.path(0).resolve() == tmp_path / "elsewhere" / "train" / "images" / "a.png"
    assert train.record(0).labels.tolist() == [0]


def test_listed_pictures_outside_the_root_want_permission(tmp_path, write_yolo, write_picture, read):
    write_picture(tmp_path / "x.png")
    write_yolo(tmp_path / "set", f"{HEAD}train: train\nval: list.txt\n")
    (tmp_path / "set" / "list.txt").write_text("../x.png\n")
    with pytest.raises(UserError, match=r"leads out of .* data\.allow_outside_root=true"):
        read(tmp_path / "set")
    assert read(tmp_path / "set", allow_outside_root=True).splits["valid"].path(0).is_file()


def test_a_path_that_is_gone_is_said(tmp_path, write_yolo, read, caplog):
    write_yolo(tmp_path, f"path: /content/datasets/cells\n{PLAIN}")
    assert len(read(tmp_path).splits["train"]) == 2
    assert "path: /content/datasets/cells does not exist; its splits are looked for in" in caplog.text


def test_linked_folders_are_followed_once(tmp_path, write_yolo, read):
    write_yolo(tmp_path / "set", f"{HEAD}train: train/images\nval: valid/images\n")
    os.rename(tmp_path / "set" / "train" / "images", tmp_path / "pool")
    (tmp_path / "set" / "train" / "images").mkdir()
    (tmp_path / "set" / "train" / "images" / "link").symlink_to(tmp_path / "pool")
    (tmp_path / "pool" / "up").symlink_to(tmp_path / "set" / "train")
    (tmp_path / "set" / "train" / "labels" / "link").mkdir()
    (tmp_path / "set" / "train" / "labels" / "link" / "a.txt").write_text(BOX)
    train = read(tmp_path / "set", allow_outside_root=True).splits["train"]
    assert [len(train.record(i).labels) for i in range(len(train))] == [1, 0]


def test_hidden_files_and_others_are_no_pictures(tmp_path, write_yolo, read):
    write_yolo(tmp_path, PLAIN)
    for name in ("._a.png", "notes.txt", "a.json"):
        (tmp_path / "train" / "images" / name).write_text("x")
    assert len(read(tmp_path).splits["train"]) == 2


def test_no_label_file_at_all_is_a_warning_that_says_where(tmp_path, write_yolo, read, caplog):
    write_yolo(tmp_path, PLAIN)
    (tmp_path / "valid" / "labels").rename(tmp_path / "valid" / "Labels")
    assert not len(read(tmp_path).splits["valid"].labels)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert f"1 of 1 pictures have no label file (no {tmp_path / 'valid' / 'labels' / 'c.txt'})" in warning


@pytest.mark.parametrize(
    ("line", "class_number", "cxcywh"),
    [
        ("0 .5 .5 1.0004 1", 0, (0.5, 0.5, 1.0004, 1)),
        ("0 .1 .1 .9 .1 .9 .9 .1 .9", 0, (0.5, 0.5, 0.8, 0.8)),
        ("1 0.25 0 0.75 0 0.5 1", 1, (0.5, 0.5, 0.5, 1)),
        ("0.0 .5 .5 .2 .2", 0, (0.5, 0.5, 0.2, 0.2)),
        ("1.0\t5e-1 +.5  0 0", 1, (0.5, 0.5, 0, 0)),
    ],
)
def test_lines(tmp_path, line, class_number, cxcywh):
    (box,) = labels_in(tmp_path, line)
    assert box.name == NAMES[class_number]
    assert box.numbers == pytest.approx(cxcywh)


def test_boxes_are_clipped_and_empty_ones_counted(tmp_path, write_yolo, read, caplog):
    write_yolo(tmp_path, PLAIN, label="0 .5 .5 1.0004 1\n\n1 .5 .5 0 .2\n1 0.95 0.95 0.2 0.2\n")
    dataset = read(tmp_path)
    boxes = dataset.splits["valid"].record(0).boxes_xyxy
    np.testing.assert_allclose(boxes, [[0, 0, 100, 100], [85, 85, 100, 100]], rtol=1e-6)
    assert dataset.dropped == {"train": {"degenerate_boxes": 2}, "valid": {"degenerate_boxes": 1}}
    assert f"1 dropped of 3 boxes, with no area inside their picture: {tmp_path}/valid/labels/c.txt:3" in caplog.text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("5 .5 .5 .2 .2", r"class 5 is none of the 2 classes, 0, 1"),
        ("-1 .5 .5 .2 .2", r"class -1 is none"),
        ("0.5 .5 .5 .2 .2", r"class 0\.5 is none"),
        ("0 .5 .5 .2", "4 fields"),
        ("0 .5 .5 .2 .2 .9", "6 fields"),
        ("0 .1 .1 .9 .1 .9 .9 .1", "8 fields"),
        ("0", "1 fields"),
        ("0 nan .5 .2 .2", "must be a number, not 'nan'"),
        ("0 .5 .5 inf .2", "must be a number, not 'inf'"),
        ("nan .5 .5 .2 .2", "must be a number, not 'nan'"),
        ("cat .5 .5 .2 .2", "must be a number, not 'cat'"),
        ("0 50 50 20 20", "50 is no fraction of the picture"),
        ("0 .5 .5 .2 1.02", r"1\.02 is no fraction"),
        ("0 -.5 .5 .2 .2", r"-0\.5 is no fraction"),
    ],
)
def test_faults_of_lines(tmp_path, line, message):
    with pytest.raises(UserError, match=message) as caught:
        labels_in(tmp_path, f"{BOX}\n{line}\n")
    assert str(caught.value).startswith(f"{tmp_path / 'a.txt'}:3: ")


def test_the_faults_of_all_files_are_said_at_once(tmp_path, write_yolo, read):
    write_yolo(tmp_path, PLAIN, label="9 .5 .5 .2 .2")
    (tmp_path / "train" / "labels" / "b.txt").write_bytes(b"\xff")
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"{tmp_path}/train/labels/a.txt:1: class 9")
    assert second.startswith(f"{tmp_path}/train/labels/b.txt: byte 0 is not UTF-8")


def test_sizes_are_those_of_the_upright_picture(tmp_path, write_yolo, write_picture, read):
    """EXIF orientation 6: 60x40 in the file, 40x60 to see; boxes are fractions of what is seen."""
    write_yolo(tmp_path, PLAIN)
    exif = Image.Exif()
    exif[274] = 6
    write_picture(tmp_path / "valid" / "images" / "c.png", size=(60, 40), exif=exif)
    valid = read(tmp_path).splits["valid"]
    assert valid.sizes_px.tolist() == [[60, 40]]
    np.testing.assert_allclose(valid.record(0).boxes_xyxy, [[16, 18, 24, 42]], rtol=1e-6)


def test_label_files_of_no_picture_and_of_two(tmp_path, write_yolo, write_picture, read, caplog):
    write_yolo(tmp_path, PLAIN)
    write_picture(tmp_path / "train" / "images" / "a.jpg")
    (tmp_path / "train" / "labels" / "gone.txt").write_text(BOX)
    (tmp_path / "train" / "labels" / "classes.txt").write_text("cat\n")
    read(tmp_path)
    assert f"1 label files are of no picture: {tmp_path}/train/labels/gone.txt" in caplog.text
    assert f"1 label files are of several pictures each: {tmp_path}/train/labels/a.txt" in caplog.text


def test_classes_beside_the_labels_of_each_split(tmp_path, write_yolo, read):
    write_yolo(tmp_path, None, layout="{0}")
    for split in ("train", "valid"):
        (tmp_path / split / "classes.txt").write_text("cat\ndog\n")
    assert read(tmp_path).label_map.names == ("cat", "dog")
    (tmp_path / "valid" / "classes.txt").write_text("dog\ncat\n")
    with pytest.raises(UserError, match="differ; give all splits the same classes"):
        read(tmp_path)


def test_a_list_of_pictures_elsewhere(tmp_path, write_yolo, read):
    write_yolo(tmp_path, f"{HEAD}train: train.txt\nval: valid/images\n".replace("nc: 2", "nc: 2.0"))
    (tmp_path / "train.txt").write_text("data/train/images/a.png\n")
    with pytest.raises(UserError, match=r"train\.txt:1: .*data/train/images/a\.png does not exist"):
        read(tmp_path)
