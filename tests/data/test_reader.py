"""Where the files of a data set lie, and which may be followed."""

import json
import shutil

import pytest

from rfdetr_train.cli import compose_config
from rfdetr_train.cli_help import explain
from rfdetr_train.config import DataConfig
from rfdetr_train.data.dataset import read_dataset
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
def test_plain_layout(tmp_path, write_simple, annotations, folders, read):
    write_simple(tmp_path)
    to_plain(tmp_path, annotations, folders)
    (tmp_path / "annotations" / "captions_train2017.json").write_text("{}")
    assert paths_of(read(tmp_path)) == [tmp_path / folder / "a.png" for folder in folders]


def test_plain_layout_with_one_folder_for_all(tmp_path, write_simple, write_picture, read):
    write_simple(tmp_path)
    to_plain(tmp_path, ("train.json", "val.json"), ("annotations/t", "annotations/v"))
    write_picture(tmp_path / "images" / "a.png")
    assert paths_of(read(tmp_path)) == [tmp_path / "images" / "a.png"] * 2


def test_val_stands_for_valid(tmp_path, write_simple, read):
    write_simple(tmp_path)
    (tmp_path / "valid").rename(tmp_path / "val")
    assert paths_of(read(tmp_path))[1] == tmp_path / "val" / "a.png"


def test_two_files_for_one_split(tmp_path, write_simple, read):
    write_simple(tmp_path)
    shutil.copytree(tmp_path / "valid", tmp_path / "val")
    with pytest.raises(UserError, match="could both be the valid split"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("folder", "file_name"),
    [
        ("数据 集/é#1 (копия)", "a.png"),
        ("a,b=c", "x=1,y=2.png"),
        ("plain", "deep/er/ü %20.png"),
        ("[x]*?", "{0}.png"),
    ],
)
def test_any_characters(tmp_path, write_simple, folder, file_name, read):
    write_simple(tmp_path / folder, file_name=file_name)
    dataset = read(tmp_path / folder)
    assert paths_of(dataset) == [tmp_path / folder / split / file_name for split in ("train", "valid")]
    assert all(path.is_file() for path in paths_of(dataset))


def test_relative_root_trailing_slash_and_links(tmp_path, write_simple, monkeypatch, read):
    write_simple(tmp_path / "set")
    (tmp_path / "link").symlink_to(tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    truths = [read(root).splits["train"].to_coco() for root in ("set", "set/", "./link", str(tmp_path / "set"))]
    assert all(truth == truths[0] for truth in truths)
    assert read("set/").root == tmp_path / "set"


def test_a_linked_folder_wants_permission_where_it_leads_out(tmp_path, write_simple, read):
    write_simple(tmp_path / "set")
    shutil.move(tmp_path / "set" / "train", tmp_path / "elsewhere")
    (tmp_path / "set" / "train").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"elsewhere.* leads out of .* data\.allow_outside_root=true"):
        read(tmp_path / "set")
    assert paths_of(read(tmp_path / "set", allow_outside_root=True))[0].is_file()
    shutil.move(tmp_path / "elsewhere", tmp_path / "set" / "pool")
    (tmp_path / "set" / "train").unlink()
    (tmp_path / "set" / "train").symlink_to("pool")
    assert paths_of(read(tmp_path / "set"))[0].is_file()


def test_a_linked_picture_that_leads_out_is_refused(tmp_path, write_simple, write_picture, read):
    write_simple(tmp_path / "set")
    (picture,) = (tmp_path / "set" / "train").glob("*.png")
    picture.rename(tmp_path / "secret.png")
    picture.symlink_to(tmp_path / "secret.png")
    with pytest.raises(UserError, match=r"secret\.png.* leads out of"):
        read(tmp_path / "set")


@pytest.mark.parametrize("file_name", ["../../secret.png", "/etc/hostname", "x/../../../a.png", "a\0.png"])
def test_file_names_that_leave_the_root(tmp_path, write_simple, file_name, read):
    write_simple(tmp_path, file_name=file_name, pictures=False)
    with pytest.raises(UserError, match="leads out of"):
        read(tmp_path)


def test_a_neighbouring_split_is_inside_the_root(tmp_path, write_simple, write_picture, read):
    write_picture(tmp_path / "pool" / "a.png")
    write_simple(tmp_path, file_name="../pool/a.png", pictures=False)
    assert paths_of(read(tmp_path))[0].is_file()


def test_a_missing_root_is_named_in_full(tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        read("nowhere")
    message = str(caught.value)
    assert f"{tmp_path / 'nowhere'} does not exist" in message
    assert "train/_annotations.coco.json" in message
    assert "annotations/instances_train2017.json" in message


def test_a_file_as_root(tmp_path, read):
    (tmp_path / "x").write_text("")
    with pytest.raises(UserError, match="is no folder"):
        read(tmp_path / "x")


@pytest.mark.parametrize("missing", ["train", "valid"])
def test_a_missing_split(tmp_path, write_simple, missing, read):
    write_simple(tmp_path)
    shutil.rmtree(tmp_path / missing)
    with pytest.raises(UserError, match=f"no {missing} split; looked for {missing}/_annotations.coco.json"):
        read(tmp_path)


def test_the_test_split_is_read_when_asked_for(tmp_path, write_simple, write_split, read):
    table = write_simple(tmp_path)
    with pytest.raises(UserError, match="no test split"):
        read(tmp_path, ("train", "valid", "test"))
    write_split(tmp_path, "test", table)
    assert list(read(tmp_path, ("test",)).splits) == ["test"]


def test_no_folder_of_pictures(tmp_path, write_simple, read):
    table = write_simple(tmp_path)
    shutil.rmtree(tmp_path / "train")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "train.json").write_text(json.dumps(table))
    assert paths_of(read(tmp_path))[0] == tmp_path / "a.png"  # the root itself is the last resort


@pytest.mark.parametrize(
    ("annotations", "folders"),
    [
        ("annotations/instances_default.json", "images/default"),  # CVAT
        ("result.json", "images"),  # Label Studio
        ("train.json", "."),
    ],
)
def test_tools_that_export_one_split(tmp_path, write_simple, read, annotations, folders):
    write_simple(tmp_path / "source", file_name="a/b.png")
    root = tmp_path / "set"
    (root / folders).parent.mkdir(parents=True, exist_ok=True)
    shutil.move(tmp_path / "source" / "train", root / folders)
    (root / annotations).parent.mkdir(exist_ok=True)
    shutil.move(root / folders / "_annotations.coco.json", root / annotations)
    train = read(root, ("train",)).splits["train"]
    assert train.path(0) == root / folders / "a" / "b.png"


def test_windows_separators(tmp_path, write_simple, write_picture, read):
    write_picture(tmp_path / "train" / "deep" / "a.png")
    write_picture(tmp_path / "train" / "odd\\name.png")
    write_simple(tmp_path, file_name="deep\\a.png", pictures=False)
    assert read(tmp_path, ("train",)).splits["train"].path(0) == tmp_path / "train" / "deep" / "a.png"
    write_simple(tmp_path, file_name="odd\\name.png", pictures=False)
    assert read(tmp_path, ("train",)).splits["train"].path(0).is_file()
    write_simple(tmp_path, file_name="..\\..\\x.png", pictures=False)
    with pytest.raises(UserError, match="leads out of"):
        read(tmp_path)


def test_outside_with_permission(tmp_path, write_simple, write_picture, read):
    write_picture(tmp_path / "pool" / "a.png")
    write_simple(tmp_path / "set", file_name="../../pool/a.png", pictures=False)
    with pytest.raises(UserError, match=r"data\.allow_outside_root=true"):
        read(tmp_path / "set")
    assert paths_of(read(tmp_path / "set", allow_outside_root=True))[0].is_file()


@pytest.mark.parametrize("root", ["数据 集/é#1 (копия)", "a,b=c/{x}: $1 [y]"])
def test_the_quoted_form_that_the_command_line_shows_works(root):
    """Where it refuses the plain form at all."""
    try:
        config = compose_config("train", ["data=auto", f"data.root={root}"])
    except Exception as error:
        quoted = explain(error, "train", []).split('"')[1]
        config = compose_config("train", ["data=auto", quoted])
    assert config.data.root == root


def test_progress_counts_the_sizes_that_are_read(tmp_path, coco_table, write_split):
    table = coco_table({f"{i}.png": [(1, [1, 1, 9, 9])] for i in range(100)}, [{"id": 1, "name": "cell"}])
    for image in table["images"][:70]:
        del image["width"]
    write_split(tmp_path, "train", table, pictures=False)
    seen = []
    read_dataset(DataConfig("coco", format="coco", root=str(tmp_path)), ("train",), lambda *counts: seen.append(counts))
    assert seen == [(16, 70), (32, 70), (48, 70), (64, 70), (70, 70)]
