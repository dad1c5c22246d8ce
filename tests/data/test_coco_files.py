"""Layouts and paths."""

import json
import shutil

import pytest

from rfdetr_train.data.coco import read_coco
from rfdetr_train.errors import UserError


def paths_of(dataset):
    return [dataset.splits[name].path(0) for name in ("train", "valid")]


def to_plain(root, annotations, folders):
    """Turn Roboflow's layout into the plain one."""
    (root / "annotations").mkdir()
    for split, name, folder in zip(("train", "valid"), annotations, folders, strict=True):
        shutil.move(root / split / "_annotations.coco.json", root / "annotations" / name)
        (root / folder).parent.mkdir(exist_ok=True)
        shutil.move(root / split, root / "moving")
        shutil.move(root / "moving", root / folder)


@pytest.mark.parametrize(
    ("annotations", "folders"),
    [
        (("instances_train2017.json", "instances_val2017.json"), ("train2017", "val2017")),
        (("instances_train2017.json", "instances_val2017.json"), ("images/train2017", "images/val2017")),
        (("train.json", "val.json"), ("train", "val")),
        (("train.json", "valid.json"), ("images/train", "images/val")),
    ],
)
def test_plain_layout(tmp_path, write_simple, annotations, folders):
    write_simple(tmp_path)
    to_plain(tmp_path, annotations, folders)
    (tmp_path / "annotations" / "captions_train2017.json").write_text("{}")
    assert paths_of(read_coco(tmp_path)) == [tmp_path / folder / "a.png" for folder in folders]


def test_plain_layout_with_one_folder_for_all(tmp_path, write_simple, write_picture):
    write_simple(tmp_path)
    to_plain(tmp_path, ("train.json", "val.json"), ("annotations/t", "annotations/v"))
    write_picture(tmp_path / "images" / "a.png")
    assert paths_of(read_coco(tmp_path)) == [tmp_path / "images" / "a.png"] * 2


def test_val_stands_for_valid(tmp_path, write_simple):
    write_simple(tmp_path)
    (tmp_path / "valid").rename(tmp_path / "val")
    assert paths_of(read_coco(tmp_path))[1] == tmp_path / "val" / "a.png"


def test_two_files_for_one_split(tmp_path, write_simple):
    write_simple(tmp_path)
    shutil.copytree(tmp_path / "valid", tmp_path / "val")
    with pytest.raises(UserError, match="could both be the valid split"):
        read_coco(tmp_path)


@pytest.mark.parametrize(
    ("folder", "file_name"),
    [
        ("数据 集/é#1 (копия)", "a.png"),
        ("a,b=c", "x=1,y=2.png"),
        ("plain", "deep/er/ü %20.png"),
        ("[x]*?", "{0}.png"),
    ],
)
def test_any_characters(tmp_path, write_simple, folder, file_name):
    write_simple(tmp_path / folder, file_name=file_name)
    dataset = read_coco(tmp_path / folder)
    assert paths_of(dataset) == [tmp_path / folder / split / file_name for split in ("train", "valid")]
    assert all(path.is_file() for path in paths_of(dataset))


def test_relative_root_trailing_slash_and_links(tmp_path, write_simple, monkeypatch):
    write_simple(tmp_path / "set")
    (tmp_path / "link").symlink_to(tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    truths = [read_coco(root).splits["train"].to_coco() for root in ("set", "set/", "./link", str(tmp_path / "set"))]
    assert all(truth == truths[0] for truth in truths)
    assert read_coco("set/").root == tmp_path / "set"


def test_a_linked_folder_inside_the_root(tmp_path, write_simple):
    write_simple(tmp_path / "set")
    shutil.move(tmp_path / "set" / "train", tmp_path / "elsewhere")
    (tmp_path / "set" / "train").symlink_to(tmp_path / "elsewhere")
    assert paths_of(read_coco(tmp_path / "set"))[0].is_file()


@pytest.mark.parametrize("file_name", ["../../secret.png", "/etc/hostname", "x/../../../a.png", "a\0.png"])
def test_file_names_that_leave_the_root(tmp_path, write_simple, file_name):
    write_simple(tmp_path, file_name=file_name, pictures=False)
    with pytest.raises(UserError, match="leads out of"):
        read_coco(tmp_path)


def test_a_neighbouring_split_is_inside_the_root(tmp_path, write_simple, write_picture):
    write_picture(tmp_path / "pool" / "a.png")
    write_simple(tmp_path, file_name="../pool/a.png", pictures=False)
    assert paths_of(read_coco(tmp_path))[0].is_file()


def test_a_missing_root_is_named_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        read_coco("nowhere")
    message = str(caught.value)
    assert f"{tmp_path / 'nowhere'} does not exist" in message
    assert "train/_annotations.coco.json" in message
    assert "annotations/instances_train2017.json" in message


def test_a_file_as_root(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(UserError, match="is no folder"):
        read_coco(tmp_path / "x")


@pytest.mark.parametrize("missing", ["train", "valid"])
def test_a_missing_split(tmp_path, write_simple, missing):
    write_simple(tmp_path)
    shutil.rmtree(tmp_path / missing)
    with pytest.raises(UserError, match=f"no {missing} split; looked for {missing}/_annotations.coco.json"):
        read_coco(tmp_path)


def test_the_test_split_is_read_when_asked_for(tmp_path, write_simple, write_split):
    table = write_simple(tmp_path)
    with pytest.raises(UserError, match="no test split"):
        read_coco(tmp_path, ("train", "valid", "test"))
    write_split(tmp_path, "test", table)
    assert list(read_coco(tmp_path, ("test",)).splits) == ["test"]


def test_no_folder_of_pictures(tmp_path, write_simple):
    table = write_simple(tmp_path)
    shutil.rmtree(tmp_path / "train")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "train.json").write_text(json.dumps(table))
    assert paths_of(read_coco(tmp_path))[0] == tmp_path / "a.png"  # the root itself is the last resort
