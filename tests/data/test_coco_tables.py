"""Broken COCO files are refused with the place of the fault."""

import json

import numpy as np
import pytest

from rfdetr_train.data.coco_tables import area_of, box_xywh_of, file_name_of, is_crowd, read_tables, size_px_of
from rfdetr_train.errors import UserError

IMAGE = {"id": 1, "file_name": "a.png", "width": 10, "height": 20}
ANNOTATION = {"id": 7, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}
CATEGORY = {"id": 3, "name": "cell"}
WHOLE = {"images": [IMAGE], "annotations": [ANNOTATION], "categories": [CATEGORY]}


def read(tmp_path, content):
    file = tmp_path / "x.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return read_tables(file)


def read_all(tmp_path, content):
    images, annotations, _ = read(tmp_path, content)
    for key in ("id", "image_id", "category_id"):
        annotations.integers(key)
    for value_of in (box_xywh_of, area_of, is_crowd):
        annotations.column(value_of)
    images.integers("id")
    for value_of in (file_name_of, size_px_of):
        images.column(value_of)


def test_rows(tmp_path):
    images, annotations, categories = read(tmp_path, WHOLE)
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
    images, annotations, _ = read(tmp_path, {**WHOLE, "images": [image], "annotations": rows})
    assert images.column(size_px_of) == [(0, 0)]
    assert annotations.integers("id").tolist() == [1, 2]


def test_a_byte_order_mark_and_whole_floats(tmp_path):
    content = {**WHOLE, "images": [{**IMAGE, "id": 1.0}], "annotations": [{**ANNOTATION, "iscrowd": None}]}
    images, annotations, _ = read(tmp_path, b"\xef\xbb\xbf" + json.dumps(content).encode())
    assert images.integers("id").tolist() == [1]
    assert annotations.column(is_crowd) == [False]


def test_segmentations_are_not_kept_beside_a_box(tmp_path):
    rows = [{**ANNOTATION, "segmentation": [[1, 2, 3, 4, 5, 6]]}, {**ANNOTATION, "bbox": None, "segmentation": [[1]]}]
    _, annotations, _ = read(tmp_path, {**WHOLE, "annotations": rows})
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
