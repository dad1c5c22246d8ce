"""Pascal VOC: layouts, pixel coordinates, and what an XML file may not do."""

import shutil
from pathlib import Path

import pytest

from rfdetr_train.data.voc import read_file
from rfdetr_train.errors import UserError

OBJECT = (
    "<object><name>{}</name>{}<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
CELL = OBJECT.format("cell", "", 11, 11, 40, 30)  # xywh 10, 10, 30, 20
SIZE = "<size><width>100</width><height>100</height><depth>3</depth></size>"


def xml(*objects: str, head: str = SIZE) -> str:
    return f"<annotation>\n{head}\n" + "\n".join(objects) + "\n</annotation>\n"


@pytest.fixture
def write_voc(write_picture):
    """Write pictures and XML files beside each other: `{"train/a": text, ...}`."""

    def write(root: Path, files: dict[str, str]) -> None:
        for name, text in files.items():
            write_picture(root / f"{name}.png")
            (root / f"{name}.xml").write_text(text, encoding="utf-8")

    return write


def parse(tmp_path, text: str):
    file = tmp_path / "a.xml"
    file.write_text(text, encoding="utf-8")
    return read_file(file)


def content(dataset) -> list:
    records = [split.record(i) for split in dataset.splits.values() for i in range(len(split))]
    return [dataset.label_map, [(r.path.name, r.size_px, r.boxes_xyxy.tolist(), r.labels.tolist()) for r in records]]


def test_pixels_count_from_1_and_include_the_last(tmp_path, write_voc, read):
    whole, first = OBJECT.format("cell", "", 1, 1, 100, 100), OBJECT.format("cell", "", 1, 1, 1, 1)
    write_voc(tmp_path, {"train/a": xml(whole, first), "valid/b": xml(CELL)})
    dataset = read(tmp_path)
    assert dataset.splits["train"].boxes_xywh.tolist() == [[0, 0, 100, 100], [0, 0, 1, 1]]
    assert dataset.splits["valid"].boxes_xywh.tolist() == [[10, 10, 30, 20]]


@pytest.mark.parametrize("names", [("Annotations", "JPEGImages"), ("annotations", "images"), ("Annotations", ".")])
@pytest.mark.parametrize("sub_folder", ["", "deep"])
def test_image_sets(tmp_path, write_voc, read, names, sub_folder):
    write_voc(tmp_path / "plain", {"train/a.1": xml(CELL), "train/b": xml(), "valid/c d": xml(CELL)})
    root = tmp_path / "voc"
    annotations, pictures = (root / name / sub_folder for name in names)
    for folder in (annotations, pictures, root / "ImageSets" / "Main"):
        folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid"):
        for file in (tmp_path / "plain" / split).iterdir():
            shutil.copy(file, annotations if file.suffix == ".xml" else pictures)
    prefix = f"{sub_folder}/" if sub_folder else ""
    (root / "ImageSets" / "Main" / "train.txt").write_text(f"{prefix}b  1\r\n{prefix}a.1 -1\n\n")
    (root / "ImageSets" / "Main" / "val.txt").write_text(f"{prefix}c d\n")
    assert content(read(root)) == content(read(tmp_path / "plain"))


def test_annotations_without_image_sets_are_train(tmp_path, write_voc, read):
    write_voc(tmp_path, {f"Annotations/{name}": xml(CELL) for name in "abcd"})
    with pytest.raises(UserError, match=r"no valid split; .* data\.valid_fraction=0\.1"):
        read(tmp_path)
    dataset = read(tmp_path, valid_fraction=0.25)
    assert [len(split) for split in dataset.splits.values()] == [3, 1]


def test_ids_follow_the_order_of_names(tmp_path, write_voc, read):
    objects = [OBJECT.format(name, "", 1, 1, 10, 10) for name in ("wolf", "ant", "bee")]
    write_voc(tmp_path, {"train/a": xml(*objects), "valid/b": xml(objects[0])})
    dataset = read(tmp_path)
    assert dataset.label_map == ((1, 2, 3), ("ant", "bee", "wolf"))
    assert dataset.splits["train"].labels.tolist() == [2, 0, 1]
    assert dataset.splits["valid"].labels.tolist() == [2]  # though it is the only name in this split


def test_a_class_that_train_lacks(tmp_path, write_voc, read):
    write_voc(tmp_path, {"train/a": xml(CELL), "valid/b": xml(OBJECT.format("egg", "", 1, 1, 9, 9))})
    with pytest.raises(UserError, match=r"valid: boxes of category egg, .* \(its classes: 1 cell\)"):
        read(tmp_path)


def test_difficult_objects_are_ignored_as_crowds_are(tmp_path, write_voc, read, caplog):
    caplog.set_level("INFO")
    difficult = OBJECT.format("cell", "<difficult>1</difficult>", 51, 51, 60, 60)
    easy = OBJECT.format("cell", "<difficult>0</difficult>", 11, 11, 40, 30)
    write_voc(tmp_path, {"train/a": xml(difficult, easy), "valid/b": xml(difficult, easy)})
    dataset = read(tmp_path)
    assert dataset.splits["train"].record(0).boxes_xyxy.tolist() == [[10, 10, 40, 30]]
    assert [a["iscrowd"] for a in dataset.splits["valid"].to_coco()["annotations"]] == [1, 0]
    assert "1 boxes are difficult" in caplog.text


@pytest.mark.parametrize(
    "head", ["", "<size><width>0</width><height>0</height></size>", "<size><width>9</width></size>"]
)
def test_a_size_that_is_not_told_comes_from_the_picture(tmp_path, write_voc, read, head):
    write_voc(tmp_path, {"train/a": xml(CELL, head=head), "valid/b": xml(CELL)})
    assert read(tmp_path).splits["train"].sizes_px.tolist() == [[100, 100]]


def test_the_picture_of_the_same_name_wins_over_a_stale_one(tmp_path, write_voc, write_picture, read):
    write_voc(tmp_path, {"train/a": xml(CELL, head="<filename>old.png</filename>"), "valid/b": xml(CELL)})
    write_picture(tmp_path / "train" / "old.png")
    assert read(tmp_path).splits["train"].path(0).name == "a.png"
    (tmp_path / "train" / "a.png").unlink()
    assert read(tmp_path).splits["train"].path(0).name == "old.png"


def test_a_missing_picture_is_left_to_the_check(tmp_path, write_voc, read):
    write_voc(tmp_path, {"train/a": xml(CELL), "train/b": xml(CELL), "valid/b": xml(CELL)})
    (tmp_path / "train" / "a.png").unlink()
    train = read(tmp_path).splits["train"]
    assert [train.path(i).is_file() for i in range(2)] == [False, True]


def test_file_names_that_leave_the_root(tmp_path, write_voc, read):
    write_voc(tmp_path / "set", {"train/a": xml(head="<filename>../../x.png</filename>"), "valid/b": xml(CELL)})
    (tmp_path / "set" / "train" / "a.png").unlink()
    with pytest.raises(UserError, match=r"train/a\.xml: .* leads out of"):
        read(tmp_path / "set")


@pytest.mark.parametrize(
    ("line", "message"), [("../c", "leads out of"), ("nothing", r"files that do not exist; .*nothing\.xml")]
)
def test_faults_of_image_sets(tmp_path, write_voc, read, line, message):
    write_voc(tmp_path, {"Annotations/a": xml(CELL)})
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    for name in ("train", "val"):
        (tmp_path / "ImageSets" / "Main" / f"{name}.txt").write_text(f"a\n{line}\n")
    with pytest.raises(UserError, match=message):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (xml(CELL, OBJECT.format("", "", 1, 1, 2, 2)), ":4: the object has no <name>"),
        (xml("<object><name>cell</name></object>"), ":3: <bndbox/xmin> of <object> must be a number, not ''"),
        (xml(OBJECT.format("cell", "", 1, 1, "nan", 2)), ":3: <bndbox/xmax> of <object> must be a number, not 'nan'"),
        (xml(OBJECT.format("cell", "<difficult>x</difficult>", 1, 1, 2, 2)), ":3: <difficult> of <object> must be"),
        (xml(head="<size><width>a</width></size>"), ":1: <size/width> of <annotation> must be a number, not 'a'"),
        ("<annotation><object></annotation>", ":1: not valid XML: mismatched tag"),
        ("", ":1: not valid XML: no element found"),
        ("<html></html>", ": <html> is no <annotation> of Pascal VOC"),
        ("<?xml version='1.0' encoding='klingon'?><annotation/>", "not valid XML: unknown encoding|its encoding"),
        ("<!DOCTYPE a [<!ENTITY x 'y'>]><annotation>&x;</annotation>", ":1: has a DOCTYPE"),
        ("\n<!DOCTYPE annotation SYSTEM 'http://localhost/x.dtd'><annotation/>", ":2: has a DOCTYPE"),
        ("<annotation>&x;</annotation>", ":1: not valid XML: undefined entity"),
    ],
)
def test_faults(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        parse(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "a.xml"))


def test_other_encodings(tmp_path):
    text = "<?xml version='1.0' encoding='{}'?>" + xml(OBJECT.format("é", "", 1, 1, 2, 2))
    for encoding in ("utf-8-sig", "utf-16", "iso-8859-1", "windows-1252"):
        (tmp_path / "a.xml").write_bytes(text.format(encoding.removesuffix("-sig")).encode(encoding))
        assert read_file(tmp_path / "a.xml").boxes[0].name == "é"


def test_pictures_without_a_file_are_background(tmp_path, write_voc, write_picture, read, caplog):
    write_voc(tmp_path, {"train/a": xml(CELL), "Validation/b": xml(CELL)})
    write_picture(tmp_path / "train" / "c.jfif", format="JPEG")
    (tmp_path / "train" / "d.avif").write_bytes(b"")
    train = read(tmp_path).splits["train"]
    assert [(train.path(i).name, len(train.record(i).labels)) for i in range(2)] == [("a.png", 1), ("c.jfif", 0)]
    assert "1 pictures have no XML file, so no boxes: train/c.jfif" in caplog.text
    assert "1 pictures left out, save them as JPEG or PNG" in caplog.text
