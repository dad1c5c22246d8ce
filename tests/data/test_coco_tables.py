"""Broken COCO files are refused with the place of the fault."""

import json

import pytest

from rfdetr_train.data.coco_tables import read_tables
from rfdetr_train.errors import UserError

IMAGE = {"id": 1, "file_name": "a.png", "width": 10, "height": 20}
ANNOTATION = {"id": 7, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}
CATEGORY = {"id": 3, "name": "cell"}
WHOLE = {"images": [IMAGE], "annotations": [ANNOTATION], "categories": [CATEGORY]}


def read(tmp_path, content):
    file = tmp_path / "x.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return read_tables(file)


def test_rows(tmp_path):
    tables = read(tmp_path, WHOLE)
    assert tables.images[0].size_px == (20, 10)
    assert tables.annotations[0][:4] == (7, 1, 3, [1, 2, 3, 4])
    assert tables.annotations[0].crowd is False
    assert tables.annotations[0].area is None
    assert tables.categories[3].name == "cell"


def test_a_byte_order_mark_and_whole_floats(tmp_path):
    content = {**WHOLE, "images": [{**IMAGE, "id": 1.0}], "annotations": [{**ANNOTATION, "iscrowd": None}]}
    tables = read(tmp_path, b"\xef\xbb\xbf" + json.dumps(content).encode())
    assert tables.images[0].image_id == 1
    assert tables.annotations[0].crowd is False


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
        ({**WHOLE, "images": [{"id": 1, "file_name": "a"}]}, r"images\[0\]\.height .* not None"),
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
        read(tmp_path, content)
    assert str(tmp_path / "x.json") in str(caught.value)
