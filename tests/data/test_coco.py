"""Boxes, ids and counts of COCO files."""

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from rfdetr_train.data.coco import area_of, box_xywh_of, file_name_of, is_crowd, read_tables, size_px_of
from rfdetr_train.data.image_check import check_images
from rfdetr_train.errors import UserError

SIX_BOXES = ([10, 10, 0, 20], [10, 10, 20, 0], [10, 10, -5, 8], [150, 10, 20, 20], [90, 90, 20, 20], [-5, -5, 20, 20])


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_degenerate_boxes_are_dropped_and_others_clipped(tmp_path, write_simple, coco_table, write_split, caplog, read):
    write_simple(tmp_path)
    table = coco_table({"a.png": [(1, box) for box in SIX_BOXES]}, [{"id": 1, "name": "cell"}])
    write_split(tmp_path, "train", table)
    dataset = read(tmp_path)
    assert dataset.splits["train"].record(0).boxes_xyxy.tolist() == [[90, 90, 100, 100], [0, 0, 15, 15]]
    assert dataset.dropped == {"train": {"degenerate_boxes": 4}, "valid": {}}
    (warning, _) = warnings_of(caplog)
    assert "4 dropped" in warning
    assert "1, 2, 3, 4" in warning


def test_a_box_thinner_than_training_can_see_is_degenerate(tmp_path, write_simple, read, caplog):
    """float32 has steps of 4e-6 pixels at 50: both edges of such a box are one there."""
    boxes = [(50, 50, 1e-9, 20), (-30, -30, 30, 40), (99.5, 0, 10, 1000)]
    write_simple(tmp_path, boxes=boxes, pictures=False)
    assert read(tmp_path).splits["train"].record(0).boxes_xyxy.tolist() == [[99.5, 0, 100, 100]]
    assert "2 dropped of 3 boxes, with no area inside their picture: annotation ids 1, 2" in warnings_of(caplog)[0]


def test_clipped_boxes_have_their_own_area(tmp_path, write_simple, read):
    table = write_simple(tmp_path, boxes=[(90, 90, 20, 20), (10, 10, 30, 20)])
    for annotation, area in zip(table["annotations"], (400, 450), strict=True):
        annotation["area"] = area
    (tmp_path / "train" / "_annotations.coco.json").write_text(json.dumps(table))
    assert read(tmp_path).splits["train"].areas.tolist() == [100, 450]


def test_boxes_inside_keep_their_numbers_to_the_bit(tmp_path, write_simple, read):
    box = [10.1, 0.3, 20.7, 30.000000001]
    write_simple(tmp_path, boxes=[box])
    assert read(tmp_path).splits["valid"].to_coco()["annotations"][0]["bbox"] == box


def test_a_polygon_stands_for_its_box(tmp_path, coco_table, write_split, read, score):
    table = coco_table({"a.png": [(1, None), (1, [50, 50, 20, 10])]}, [{"id": 1, "name": "cell"}])
    del table["annotations"][0]["bbox"]
    table["annotations"][0]["segmentation"] = [[10, 10, 40, 10, 40, 30, 10, 30]]
    for split in ("train", "valid"):
        write_split(tmp_path, split, table)
    valid = read(tmp_path).splits["valid"]
    assert score(valid)[0].overall["AP"] == pytest.approx(1.0)
    first, second = valid.to_coco()["annotations"]
    assert first["bbox"] == [10, 10, 30, 20]
    assert (first["id"], first["area"], first["iscrowd"]) == (1, 600, 0)
    assert (second["id"], second["area"], second["iscrowd"]) == (2, 200, 0)


@pytest.mark.parametrize("counts", [[1203, 4, 96, 4, 8693], "compressed"])
def test_run_lengths_stand_for_their_box(tmp_path, coco_table, write_split, counts, read):
    """Columns 12 and 13, rows 3 to 6 of a 100x100 mask: run lengths count down the columns."""
    from pycocotools import mask

    code = {"size": [100, 100], "counts": [1203, 4, 96, 4, 8693]}
    if counts == "compressed":
        code["counts"] = mask.frPyObjects(code, 100, 100)["counts"].decode()
    table = coco_table({"a.png": [(1, [])]}, [{"id": 1, "name": "cell"}])
    table["annotations"][0]["segmentation"] = code
    for split in ("train", "valid"):
        write_split(tmp_path, split, table)
    assert read(tmp_path).splits["train"].boxes_xywh.tolist() == [[12, 3, 2, 4]]


@pytest.mark.parametrize(
    "segmentation",
    [[[10, 10, 40]], [[]], {"size": [50, 50], "counts": [2500]}, {"size": [100, 100], "counts": [7]}, {"counts": [7]}],
)
def test_a_broken_segmentation_is_refused(tmp_path, coco_table, write_split, segmentation, read):
    table = coco_table({"a.png": [(1, None)]}, [{"id": 1, "name": "cell"}])
    table["annotations"][0]["segmentation"] = segmentation
    file = write_split(tmp_path, "train", table, pictures=False)
    write_split(tmp_path, "valid", table, pictures=False)
    with pytest.raises(UserError, match="annotation 1: the segmentation cannot be read") as caught:
        read(tmp_path)
    assert str(file) in str(caught.value)


def test_crowds_are_truth_but_no_targets(tmp_path, coco_table, write_split, read):
    table = coco_table({"a.png": [(1, [1, 1, 50, 50]), (1, [60, 60, 9, 9])]}, [{"id": 1, "name": "cell"}])
    table["annotations"][0]["iscrowd"] = 1
    for split in ("train", "valid"):
        write_split(tmp_path, split, table)
    split = read(tmp_path).splits["train"]
    assert split.record(0).boxes_xyxy.tolist() == [[60, 60, 69, 69]]
    assert [a["iscrowd"] for a in split.to_coco()["annotations"]] == [1, 0]


def test_two_pictures_with_one_id(tmp_path, coco_table, write_split, read):
    table = coco_table({"a.png": [(1, [1, 1, 9, 9])], "b.png": []}, [{"id": 1, "name": "cell"}])
    table["images"][1]["id"] = 1
    file = write_split(tmp_path, "train", table)
    write_split(tmp_path, "valid", table)
    with pytest.raises(UserError, match="image id 1 ") as caught:
        read(tmp_path)
    assert str(file) in str(caught.value)


def test_three_pictures_with_two_ids(tmp_path, coco_table, write_split, write_simple, read):
    write_simple(tmp_path)
    table = coco_table({"a.png": [(1, [1, 1, 9, 9])], "b.png": [], "c.png": []}, [{"id": 1, "name": "cell"}])
    table["images"][2]["id"] = 2
    write_split(tmp_path, "valid", table)
    with pytest.raises(UserError, match=r"valid/_annotations\.coco\.json: image id 2 is given to 2 pictures"):
        read(tmp_path)


def test_orphans_of_several_pictures(tmp_path, coco_table, write_split, write_simple, read, caplog):
    write_simple(tmp_path)
    table = coco_table({"a.png": [(1, [1, 1, 9, 9])] * 4}, [{"id": 1, "name": "cell"}])
    for annotation, image_id in zip(table["annotations"], (7, 1, -5, 7), strict=True):
        annotation["image_id"] = image_id
    write_split(tmp_path, "train", table)
    assert len(read(tmp_path).splits["train"].labels) == 1
    assert warnings_of(caplog)[0].endswith("3 dropped: annotations of image ids that are not in the file: 7, -5")


def test_sizes_that_the_file_does_not_give(tmp_path, coco_table, write_split, write_simple, write_picture, read):
    write_simple(tmp_path)
    table = coco_table(
        {"a.png": [(1, [50, 50, 90, 90])], "b.png": [(1, [60, 10, 9, 99])], "gone.png": []}, [{"id": 1, "name": "cell"}]
    )
    write_split(tmp_path, "train", table)
    write_picture(tmp_path / "train" / "b.png", size=(70, 40))
    (tmp_path / "train" / "gone.png").unlink()
    for image, missing in zip(table["images"], ((), ("width", "height"), ("height",)), strict=True):
        for key in missing:
            del image[key]
    write_split(tmp_path, "train", table, pictures=False)
    train = read(tmp_path).splits["train"]
    assert train.sizes_px[:2].tolist() == [[100, 100], [40, 70]]
    assert train.record(1).boxes_xyxy.tolist() == [[60, 10, 69, 40]]
    with pytest.raises(UserError, match=r"1 of 3 pictures cannot be read.*\n.*gone\.png: does not exist"):
        check_images(read(tmp_path), "error")


def test_run_lengths_where_the_size_is_not_given(tmp_path, coco_table, write_split, write_picture, read):
    table = coco_table({"a.png": [(1, None)]}, [{"id": 1, "name": "cell"}])
    table["annotations"][0]["segmentation"] = {"size": [100, 100], "counts": [1203, 4, 96, 4, 8693]}
    del table["images"][0]["width"]
    for split in ("train", "valid"):
        write_split(tmp_path, split, table, pictures=False)
    assert read(tmp_path).splits["train"].boxes_xywh.tolist() == [[12, 3, 2, 4]]  # no picture either: its check refuses
    write_picture(tmp_path / "train" / "a.png", size=(50, 100))
    with pytest.raises(UserError, match=r"size \[100, 100\] is not the picture's \[100, 50\]"):
        read(tmp_path)


def test_ids_in_quotes_are_refused(tmp_path, coco_table, write_split, read):
    table = coco_table({"a.png": [(1, [1, 1, 9, 9])]}, [{"id": 1, "name": "cell"}])
    table["annotations"][0]["image_id"] = "000000000001"
    write_split(tmp_path, "train", table)
    write_split(tmp_path, "valid", table)
    with pytest.raises(UserError, match=r"annotations\[0\]\.image_id must be a whole number .*; results name it by"):
        read(tmp_path)


def test_an_annotation_of_no_picture(tmp_path, coco_table, write_split, write_simple, caplog, read):
    write_simple(tmp_path)
    table = coco_table({"a.png": [(1, [1, 1, 9, 9]), (1, [1, 1, 9, 9])]}, [{"id": 1, "name": "cell"}])
    table["annotations"][0]["image_id"] = 99
    write_split(tmp_path, "train", table)
    dataset = read(tmp_path)
    assert len(dataset.splits["train"].labels) == 1
    assert dataset.dropped["train"] == {"orphan_annotations": 1}
    (warning,) = warnings_of(caplog)
    assert "1 dropped" in warning
    assert "99" in warning


def test_one_file_under_two_ids(tmp_path, coco_table, write_split, write_simple, caplog, read):
    write_simple(tmp_path)
    table = coco_table({"a.png": [(1, [1, 1, 9, 9])], "b.png": []}, [{"id": 1, "name": "cell"}])
    table["images"][1]["file_name"] = "a.png"
    write_split(tmp_path, "train", table)
    assert len(read(tmp_path).splits["train"]) == 2
    (warning,) = warnings_of(caplog)
    assert "1 files stand under several image ids: a.png under ids [1, 2]" in warning


def test_annotations_in_any_order_find_their_pictures(tmp_path, coco_table, write_split, read):
    pictures = {f"{i}.png": [(1, [i, 1, 9, 9]), (1, [i, 50, 9, 9])] for i in range(5)}
    table = coco_table({**pictures, "empty.png": []}, [{"id": 1, "name": "cell"}])
    np.random.default_rng(0).shuffle(table["annotations"])
    np.random.default_rng(1).shuffle(table["images"])
    for split in ("train", "valid"):
        write_split(tmp_path, split, table)
    split = read(tmp_path).splits["train"]
    for index in range(6):
        record = split.record(index)
        lefts = {} if record.path.stem == "empty" else {float(record.path.stem)}
        assert set(record.boxes_xyxy[:, 0].tolist()) == set(lefts)


@pytest.mark.parametrize(("images", "boxes"), [([], "no pictures"), (["a.png"], "no usable box")])
def test_nothing_to_learn_from(tmp_path, coco_table, write_split, images, boxes, read):
    table = coco_table({name: [] for name in images}, [{"id": 1, "name": "cell"}])
    for split in ("train", "valid"):
        write_split(tmp_path, split, table)
    with pytest.raises(UserError, match=f"the train split has {boxes}"):
        read(tmp_path)


@pytest.fixture(scope="module")
def bccd_root() -> Path:
    folder = os.environ.get("RFDETR_TRAIN_BCCD")
    if not folder:
        pytest.skip("RFDETR_TRAIN_BCCD does not name the folder of the BCCD photographs")
    return Path(folder)


def test_bccd(bccd_root, caplog, read):
    dataset = read(bccd_root, ("train", "valid", "test"))
    assert [len(split) for split in dataset.splits.values()] == [205, 87, 72]
    assert [len(split.labels) for split in dataset.splits.values()] == [2804, 1137, 945]
    assert dataset.label_map.names == ("Platelets", "RBC", "WBC")
    assert dataset.dropped == {"train": {"degenerate_boxes": 1}, "valid": {"degenerate_boxes": 1}, "test": {}}
    train, valid = warnings_of(caplog)
    assert train.endswith(" 2288")
    assert valid.endswith(" 887")


def test_two_spellings_of_a_file_and_a_box_half_outside(tmp_path, coco_table, write_split, write_simple, read, caplog):
    write_simple(tmp_path)
    pictures = {"a.png": [(1, [91, 0, 20, 10]), (1, [90, 0, 20, 10])], "./a.png": []}
    write_split(tmp_path, "train", coco_table(pictures, [{"id": 1, "name": "cell"}]))
    read(tmp_path)
    assert "1 files stand under several image ids: a.png under ids [1, 2]" in caplog.text
    assert "1 boxes of 2 lie more than half outside their picture, and are cut to it: annotation ids 1" in caplog.text


IMAGE = {"id": 1, "file_name": "a.png", "width": 10, "height": 20}
ANNOTATION = {"id": 7, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}
CATEGORY = {"id": 3, "name": "cell"}
WHOLE = {"images": [IMAGE], "annotations": [ANNOTATION], "categories": [CATEGORY]}


def tables_of(tmp_path, content):
    file = tmp_path / "x.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return read_tables(file)


def read_all(tmp_path, content):
    images, annotations, _ = tables_of(tmp_path, content)
    for key in ("id", "image_id", "category_id"):
        annotations.integers(key)
    for value_of in (box_xywh_of, area_of, is_crowd):
        annotations.column(value_of)
    images.integers("id")
    for value_of in (file_name_of, size_px_of):
        images.column(value_of)


def test_rows(tmp_path):
    images, annotations, categories = tables_of(tmp_path, WHOLE)
    assert (images.integers("id").tolist(), images.column(file_name_of)) == ([1], ["a.png"])
    assert images.column(size_px_of) == [(20, 10)]
    assert [annotations.integers(key).tolist() for key in ("id", "image_id", "category_id")] == [[7], [1], [3]]
    assert annotations.column(box_xywh_of) == [[1, 2, 3, 4]]
    assert annotations.column(is_crowd) == [False]
    assert np.isnan(annotations.column(area_of)).tolist() == [True]
    assert categories == [(3, "cell", None)]


def test_only_what_is_needed(tmp_path):
    """No ids of annotations, no sizes of pictures; a key that another table has, nested objects."""
    image = {"id": 1, "file_name": "a.png", "image_id": 5, "category_id": 2, "height": None}
    rows = [{k: v for k, v in ANNOTATION.items() if k != "id"} | {"attributes": {"image_id": 1}}] * 2
    images, annotations, _ = tables_of(tmp_path, {**WHOLE, "images": [image], "annotations": rows})
    assert images.column(size_px_of) == [(0, 0)]
    assert annotations.integers("id").tolist() == [1, 2]


def test_a_byte_order_mark_and_whole_floats(tmp_path):
    content = {**WHOLE, "images": [{**IMAGE, "id": 1.0}], "annotations": [{**ANNOTATION, "iscrowd": None}]}
    images, annotations, _ = tables_of(tmp_path, b"\xef\xbb\xbf" + json.dumps(content).encode())
    assert images.integers("id").tolist() == [1]
    assert annotations.column(is_crowd) == [False]


def test_segmentations_are_not_kept_beside_a_box(tmp_path):
    rows = [{**ANNOTATION, "segmentation": [[1, 2, 3, 4, 5, 6]]}, {**ANNOTATION, "bbox": None, "segmentation": [[1]]}]
    _, annotations, _ = tables_of(tmp_path, {**WHOLE, "annotations": rows})
    assert [row.segmentation for row in annotations.rows] == [None, [[1]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"images": [],\n  "annotations": ]}', r"x\.json:2:18: not valid JSON"),
        (b"", r"x\.json:1:1: not valid JSON"),
        (b'{"images": "\xff"}', "byte 12 is not UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        ([1], "not list"),
        ({**WHOLE, "images": None}, "images must be a list, not missing"),
        ({**WHOLE, "annotations": {}}, "annotations must be a list, not dict"),
        ({**WHOLE, "annotations": [ANNOTATION, 3]}, r"annotations\[1\] must be an object, not int"),
        ({**WHOLE, "images": [{**IMAGE, "id": "1"}]}, r"images\[0\]\.id must be a whole number .* not '1'"),
        ({**WHOLE, "images": [{**IMAGE, "id": 10**30}]}, r"images\[0\]\.id must be a whole number of at most 64 bits"),
        ({**WHOLE, "images": [{**IMAGE, "file_name": 3}]}, r"images\[0\]\.file_name must be a text"),
        ({**WHOLE, "images": [{**IMAGE, "width": 0}]}, "width x height is 0x20"),
        (
            {**WHOLE, "images": [{**IMAGE, "file_name": "\ud800.png"}]},
            r"images\[0\]\.file_name must be a text, not '.ud800.png'",
        ),
        ({**WHOLE, "images": [IMAGE, {"id": 2}]}, r"images\[1\]\.file_name must be a text, not missing"),
        (
            {**WHOLE, "annotations": [{"id": 7, "bbox": [1, 2, 3, 4]}]},
            r"annotations\[0\]\.image_id must be .* not None",
        ),
        ({**WHOLE, "annotations": [{**ANNOTATION, "bbox": [1, 2, 3, 10**400]}]}, r"bbox \(id 7\) must be four finite"),
        (b'{"images": ' + b"1" * 5000 + b"}", "not valid JSON"),
        ({**WHOLE, "annotations": [{**ANNOTATION, "bbox": [1, 2, 3]}]}, r"bbox \(id 7\) must be four finite numbers"),
        ({**WHOLE, "annotations": [{**ANNOTATION, "bbox": [1, 2, 3, "4"]}]}, r"bbox \(id 7\)"),
        ({**WHOLE, "annotations": [{**ANNOTATION, "bbox": [1, 2, 3, float("nan")]}]}, r"bbox \(id 7\)"),
        ({**WHOLE, "annotations": [{**ANNOTATION, "bbox": None}]}, r"\(id 7\) has neither bbox nor segmentation"),
        ({**WHOLE, "annotations": [{**ANNOTATION, "category_id": True}]}, r"category_id must be a whole number"),
        ({**WHOLE, "annotations": [{**ANNOTATION, "area": "big"}]}, r"area \(id 7\) must be a number"),
        ({**WHOLE, "annotations": [{**ANNOTATION, "iscrowd": 2}]}, r"iscrowd \(id 7\) must be 0 or 1"),
        ({**WHOLE, "categories": [{"id": 3}]}, r"categories\[0\]\.name must be a text, not missing"),
        (
            {**WHOLE, "categories": [CATEGORY, {"id": 3, "name": "b"}]},
            "category id 3 is given twice, to 'cell' and 'b'",
        ),
    ],
)
def test_faults(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as caught:
        read_all(tmp_path, content)
    assert str(tmp_path / "x.json") in str(caught.value)
