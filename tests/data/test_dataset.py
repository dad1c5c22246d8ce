"""The door: formats found out, splits cut, classes kept and joined."""

import json
import logging

import numpy as np
import pytest

from rfdetr_train.cli import compose_config
from rfdetr_train.config import DataConfig
from rfdetr_train.data.dataset import READERS, cut_valid, open_reader, read_raw, read_split
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

ANIMALS = [{"id": 5, "name": "dog"}, {"id": 2, "name": "cat"}, {"id": 9, "name": "cow"}, {"id": 7, "name": "car"}]


@pytest.fixture
def write_animals(coco_table, write_split):
    """A dog, a cat, a cow and a car in one picture, a cow alone in another, of each split."""

    def write(root, splits=("train", "valid"), categories=ANIMALS) -> None:
        four = [(category_id, [20 * i, 10, 15, 15]) for i, category_id in enumerate((5, 2, 9, 7))]
        for split in splits:
            write_split(root, split, coco_table({"a.png": four, "b.png": [(9, [10, 10, 9, 9])]}, categories))

    return write


def write_marks(root, *formats: str) -> None:
    """What makes a folder look like a data set of these formats."""
    marks = {
        "yolo": ("data.yaml", "names: [cell]\ntrain: train\nval: valid\n"),
        "voc": ("Annotations/a.xml", "<annotation/>"),
        "csv": ("annotations.csv", "a.png,1,1,9,9,cell\n"),
    }
    for file, text in (marks[name] for name in formats):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("coco", "train/_annotations.coco.json"),
        ("yolo", "data.yaml"),
        ("voc", "Annotations"),
        ("csv", "annotations.csv"),
    ],
)
def test_the_format_is_found_and_said(tmp_path, write_animals, caplog, name, evidence):
    caplog.set_level(logging.INFO)
    if name == "coco":
        write_animals(tmp_path)
    else:
        write_marks(tmp_path, name)
    assert isinstance(open_reader(DataConfig(name="auto", root=str(tmp_path))), READERS[name])
    (line,) = caplog.messages
    assert line == f"{tmp_path}: format {name}, for there is {evidence}"


def test_two_formats_at_once(tmp_path, write_animals, read):
    write_animals(tmp_path)
    write_marks(tmp_path, "yolo", "voc")
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    assert "could be coco (train/_annotations.coco.json) or yolo (data.yaml) or voc (Annotations)" in str(caught.value)
    assert "data.format=coco" in str(caught.value)
    assert read(tmp_path, format="coco").format == "coco"


def test_no_format_at_all(tmp_path, read):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert "in no known format, it holds notes.txt" in message
    assert all(f"\n  {name}: " in message for name in ("coco", "yolo", "voc", "csv"))


def test_contradicting_formats():
    with pytest.raises(UserError, match=r"data\.format=yolo: contradicts data=coco"):
        DataConfig("coco", root="x", format="yolo")
    with pytest.raises(UserError, match=r"data\.format=auto: choose one of"):
        DataConfig("yolo", root="x", format="auto")
    with pytest.raises(UserError, match=r"data\.format=cocoa: choose one of"):
        DataConfig(name="auto", root="x", format="cocoa")


def pictures_of(split) -> list[str]:
    return [split.path(i).name for i in range(len(split))]


@pytest.fixture
def write_twenty(coco_table, write_split):
    def write(root, order=range(20)) -> None:
        pictures = {f"{i:02}.png": [(1, [i, i, 9, 9])] for i in order}
        write_split(root, "train", coco_table(pictures, [{"id": 1, "name": "cell"}]))

    return write


def test_a_valid_split_is_cut_from_train(tmp_path, write_twenty, read):
    write_twenty(tmp_path)
    dataset = read(tmp_path, valid_fraction=0.2)
    train, valid = dataset.splits["train"], dataset.splits["valid"]
    assert (len(train), len(valid), valid.name) == (16, 4, "valid")
    assert sorted(pictures_of(train) + pictures_of(valid)) == [f"{i:02}.png" for i in range(20)]
    for split in (train, valid):
        assert all(split.record(i).boxes_xyxy[0, 0] == float(split.path(i).stem) for i in range(len(split)))
    assert dataset.dropped == {"train": {"pictures_cut_off_for_valid": 4}, "valid": {}}


def test_the_cut_is_a_function_of_seed_and_file_names(tmp_path, write_twenty, read):
    write_twenty(tmp_path / "a")
    write_twenty(tmp_path / "b", order=reversed(range(20)))
    first = pictures_of(read(tmp_path / "a", valid_fraction=0.2).splits["valid"])
    assert pictures_of(read(tmp_path / "a", valid_fraction=0.2).splits["valid"]) == first
    assert sorted(pictures_of(read(tmp_path / "b", valid_fraction=0.2).splits["valid"])) == sorted(first)
    assert pictures_of(read(tmp_path / "a", valid_fraction=0.2, split_seed=1).splits["valid"]) != first
    config = DataConfig("coco", format="coco", root=str(tmp_path / "a"), valid_fraction=0.2)
    assert pictures_of(read_split(config, "valid", LabelMap((1,), ("cell",)))) == first
    assert len(read_split(config, "train", LabelMap((1,), ("cell",)))) == 16


def test_a_file_under_two_ids_is_not_on_both_sides(tmp_path, coco_table, write_split, read):
    table = coco_table({f"{i}.png": [(1, [1, 1, 9, 9])] for i in range(12)}, [{"id": 1, "name": "cell"}])
    for image in table["images"][6:]:
        image["file_name"] = f"{image['id'] - 7}.png"
    write_split(tmp_path, "train", table)
    for seed in range(5):
        splits = read(tmp_path, valid_fraction=0.5, split_seed=seed).splits
        assert not set(pictures_of(splits["train"])) & set(pictures_of(splits["valid"]))


@pytest.mark.parametrize(("fraction", "sizes"), [(0.001, (19, 1)), (0.999, (1, 19)), (0.5, (10, 10))])
def test_no_side_of_the_cut_is_empty(tmp_path, write_twenty, read, fraction, sizes):
    write_twenty(tmp_path)
    splits = read(tmp_path, valid_fraction=fraction).splits
    assert (len(splits["train"]), len(splits["valid"])) == sizes


def test_one_picture_cannot_be_cut(tmp_path, write_twenty, read):
    write_twenty(tmp_path, order=[3])
    with pytest.raises(UserError, match=r"data\.valid_fraction=0\.5: .* has one picture"):
        read(tmp_path, valid_fraction=0.5)


def test_a_cut_beside_a_valid_split_is_a_contradiction(tmp_path, write_animals, read):
    write_animals(tmp_path)
    with pytest.raises(UserError, match=r"data\.valid_fraction=0\.1: .* has a valid split already"):
        read(tmp_path, valid_fraction=0.1)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, float("nan")])
def test_fractions_that_cut_nothing(fraction):
    with pytest.raises(UserError, match=r"data\.valid_fraction=.*: give a number between 0 and 1"):
        DataConfig(name="auto", root="x", valid_fraction=fraction)


def test_a_seed_without_a_cut_does_nothing():
    with pytest.raises(UserError, match=r"data\.split_seed=3: does nothing without"):
        DataConfig(name="auto", root="x", split_seed=3)


def test_the_test_split_is_not_cut(tmp_path, write_animals, read):
    write_animals(tmp_path, ("train", "test"))
    assert len(read(tmp_path, ("test",), valid_fraction=0.5).splits["test"]) == 2


def test_a_subset_of_classes(tmp_path, write_animals, read):
    write_animals(tmp_path)
    dataset = read(tmp_path, classes=["dog", "cat"])
    assert dataset.label_map == ((2, 5), ("cat", "dog"))
    for split in dataset.splits.values():
        assert split.labels.tolist() == [1, 0]
        assert [len(split.record(i).labels) for i in range(2)] == [2, 0]  # the cow's picture stays, without a box
        assert split.dropped["boxes_of_other_classes"] == 3


def test_joined_classes(tmp_path, write_animals, read):
    write_animals(tmp_path)
    dataset = read(tmp_path, classes=[{"vehicle": ["car"], "animal": ["dog", "cow", "cat"]}])
    assert dataset.label_map == ((2, 7), ("animal", "vehicle"))
    assert dataset.splits["valid"].labels.tolist() == [0, 0, 0, 1, 0]
    assert {a["category_id"] for a in dataset.splits["valid"].to_coco()["annotations"]} == {2, 7}
    assert not dataset.dropped["train"]


def test_names_may_be_swapped_and_kept(tmp_path, write_animals, read):
    write_animals(tmp_path)
    assert read(tmp_path, classes=[{"dog": ["cat"]}, {"cat": ["dog"]}]).label_map == ((2, 5), ("dog", "cat"))
    assert read(tmp_path, classes=["car", {"cat": ["cat", "dog"]}]).label_map == ((2, 7), ("cat", "car"))


def test_names_that_are_numbers(tmp_path, write_animals, read):
    write_animals(tmp_path, categories=[{"id": c["id"], "name": str(c["id"])} for c in ANIMALS])
    assert read(tmp_path, classes=[9, 5]).label_map == ((5, 9), ("5", "9"))


def test_a_saved_label_map_takes_the_joined_name_too(tmp_path, write_animals):
    """Another data set may call the joined class by its name."""
    write_animals(tmp_path, categories=[{**c, "name": "animal" if c["id"] == 5 else c["name"]} for c in ANIMALS])
    config = DataConfig(
        "coco", format="coco", root=str(tmp_path), classes=[{"animal": ["dog", "cat"]}, {"vehicle": ["car"]}]
    )
    split = read_split(config, "valid", LabelMap((2, 7), ("animal", "vehicle")))
    assert split.labels.tolist() == [0, 0, 1]
    assert split.dropped["boxes_of_other_classes"] == 2


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["dog", "kat"], "has no class 'kat'; did you mean cat?"),
        (["zebra"], "has no class 'zebra'; its classes are car, cat, cow, dog"),
        ([{"car": ["dog", "cat"]}], "'car' is a class of the data set as well, but none of those that it joins"),
    ],
)
def test_classes_that_do_not_fit(tmp_path, write_animals, read, classes, message):
    write_animals(tmp_path)
    with pytest.raises(UserError) as caught:
        read(tmp_path, classes=classes)
    assert "data.classes: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("classes", [[], [{}], [{"a": "cat"}], [{"a": []}], [None], [{"a": [{"b": 1}]}], [{"a": None}]])
def test_classes_of_a_wrong_form(classes):
    with pytest.raises(UserError, match=r"data\.classes=.*: give names"):
        DataConfig(name="auto", root="x", classes=classes)


@pytest.mark.parametrize("classes", [["cat", "dog", "cat"], ["cat", {"b": ["dog", "cat"]}]])
def test_a_class_named_twice(classes):
    with pytest.raises(UserError, match="cat twice"):
        DataConfig(name="auto", root="x", classes=classes)


def test_no_box_is_left(tmp_path, coco_table, write_split, read):
    for split in ("train", "valid"):
        write_split(tmp_path, split, coco_table({"a.png": [(9, [1, 1, 9, 9])]}, ANIMALS))
    with pytest.raises(UserError, match="the train split has no usable box"):
        read(tmp_path, classes=["cat"])


def test_no_box_is_a_target(tmp_path, coco_table, write_split, read):
    table = coco_table({"a.png": [(9, [1, 1, 9, 9])]}, ANIMALS)
    table["annotations"][0]["iscrowd"] = 1
    for split in ("train", "valid"):
        write_split(tmp_path, split, table)
    with pytest.raises(UserError, match="the train split has no usable box"):
        read(tmp_path)


def test_raw_rows_hold_the_faults(tmp_path, write_animals):
    write_animals(tmp_path)
    file = tmp_path / "train" / "_annotations.coco.json"
    table = json.loads(file.read_text())
    table["annotations"][0] |= {"image_id": 99}
    table["annotations"][1] |= {"bbox": [90, 90, 50, -3]}
    file.write_text(json.dumps(table))
    raw = read_raw(DataConfig("coco", format="coco", root=str(tmp_path)), "train")
    assert raw.box_image_ids.tolist() == [99, 1, 1, 1, 2]
    assert raw.boxes_xywh[1].tolist() == [90, 90, 50, -3]
    assert raw.describe([1, 4]) == "annotation ids 2, 5"
    whole = DataConfig("coco", format="coco", root=str(tmp_path), valid_fraction=0.5)
    (tmp_path / "valid" / "_annotations.coco.json").unlink()
    assert np.array_equal(read_raw(whole, "valid").boxes_xywh, raw.boxes_xywh)


def test_a_cut_splits_nothing_else(tmp_path, write_twenty, read):
    write_twenty(tmp_path)
    whole = read(tmp_path, ("train",)).splits["train"]
    parts = cut_valid(whole, 0.3, 0)
    boxes = np.concatenate([part.boxes_xywh for part in parts.values()])
    assert sorted(boxes.tolist()) == whole.boxes_xywh.tolist()
    assert {part.label_map for part in parts.values()} == {whole.label_map}


@pytest.mark.parametrize(
    ("override", "class_of_name"),
    [
        ("data.classes=[cat,traffic light]", {"cat": "cat", "traffic light": "traffic light"}),
        ("data.classes=[person,{pet:[cat,dog]},3]", {"person": "person", "cat": "pet", "dog": "pet", "3": "3"}),
        ('data.classes=["a,b",{my pet:["e:f",\'g=h\']}]', {"a,b": "a,b", "e:f": "my pet", "g=h": "my pet"}),
        ("data.classes=null", None),
    ],
)
def test_classes_on_the_command_line(override, class_of_name):
    config = compose_config("train", ["data=auto", "data.root=x", "data.classes=[{other:[one,two]}]", override])
    assert config.data.class_of_name == class_of_name


def test_other_names_of_splits(tmp_path, coco_table, write_split, read):
    table = coco_table({"a.png": [(1, [1, 1, 9, 9])]}, [{"id": 1, "name": "cell"}])
    (tmp_path / "annotations").mkdir()
    for split in ("Train", "Validation"):
        file = write_split(tmp_path / "images", split, table)
        file.rename(tmp_path / "annotations" / f"instances_{split}.json")
    dataset = read(tmp_path)
    assert all(split.path(0).is_file() for split in dataset.splits.values())
    (tmp_path / "annotations" / "instances_Validation.json").rename(tmp_path / "annotations" / "odd.json")
    with pytest.raises(UserError, match=r"annotations: instances_Train\.json, odd\.json"):
        read(tmp_path)


def test_an_empty_valid_split_is_none(tmp_path, write_twenty, write_split, coco_table, read):
    write_twenty(tmp_path)
    write_split(tmp_path, "valid", coco_table({}, [{"id": 1, "name": "cell"}]))
    with pytest.raises(UserError, match="the valid split has no pictures; remove it"):
        read(tmp_path)
    assert len(read(tmp_path, valid_fraction=0.25).splits["valid"]) == 5


def test_a_class_that_the_cut_takes_from_train(tmp_path, coco_table, write_split, read, caplog):
    pictures = {f"{i}.png": [(i, [1, 1, 9, 9])] for i in (1, 2)}
    write_split(tmp_path, "train", coco_table(pictures, [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]))
    lost = read(tmp_path, valid_fraction=0.5).splits["valid"].labels[0]
    assert f"no box left in train of {('one', 'two')[lost]}; try another data.split_seed" in caplog.text


def test_hints_for_what_is_almost_a_data_set(tmp_path, write_animals, read):
    (tmp_path / "VOCdevkit" / "VOC2012").mkdir(parents=True)
    with pytest.raises(UserError, match=r"there are .*VOCdevkit/VOC2012: give one of them"):
        read(tmp_path)
    (tmp_path / "obj.data").write_text("classes = 1\n")
    with pytest.raises(UserError, match="export the data set as Ultralytics YOLO"):
        read(tmp_path)
    with pytest.raises(UserError, match=rf"is no folder, but {tmp_path} is"):
        read(tmp_path / "obj.data")
    write_animals(tmp_path, ["train"], [*ANIMALS, {"id": 11, "name": "gnu"}])
    with pytest.raises(UserError, match=r"no usable box of data\.classes, gnu"):
        read(tmp_path, classes=["gnu"], valid_fraction=0.5)
    with pytest.raises(UserError, match="choose another with split=, of train") as caught:
        read_split(DataConfig("coco", format="coco", root=str(tmp_path)), "valid", LabelMap((1,), ("x",)))
    assert "valid_fraction" not in str(caught.value)
