"""Which categories become classes."""

from pathlib import Path

import pytest

from rfdetr_train.config import DataConfig
from rfdetr_train.data.build_split import decide_label_map
from rfdetr_train.data.dataset import read_split
from rfdetr_train.data.raw_split import Category
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

FISH = [(0, "peixos", "none"), (1, "peix", "peixos"), (2, "taca", "peixos")]


def decide(rows, ids_with_boxes):
    return decide_label_map([Category(*row) for row in rows], ids_with_boxes, None, Path("x.json")).category_ids


def test_a_group_without_boxes_is_no_class():
    assert decide(FISH, {1, 2}) == (1, 2)


def test_a_group_with_a_box_is_a_class():
    assert decide(FISH, {0, 1, 2}) == (0, 1, 2)


@pytest.mark.parametrize("supercategory", ["none", None, ""])
def test_without_groups_all_are_classes(supercategory):
    assert decide([(i, f"c{i}", supercategory) for i in (1, 2, 3)], {1}) == (1, 2, 3)


def test_a_class_called_none_groups_nothing():
    assert decide([(1, "none", "none"), (2, "a", "none")], {2}) == (1, 2)


def test_its_own_supercategory_is_no_group():
    assert decide([(1, "person", "person"), (2, "car", "vehicle")], {2}) == (1, 2)


def test_its_own_supercategory_and_that_of_others_is_a_group():
    assert decide([(1, "fish", "fish"), (2, "tuna", "fish")], {2}) == (2,)


def test_groups_of_groups():
    assert decide([(0, "animal", "none"), (1, "fish", "animal"), (2, "tuna", "fish")], {2}) == (2,)


def test_a_group_with_the_name_of_its_class():
    """Roboflow's root has the name of the project, which may be that of its only class."""
    assert decide([(0, "fish", "none"), (1, "fish", "fish")], {1}) == (1,)
    assert decide([(0, "fish", "none"), (1, "tuna", "fish"), (2, "fish", "fish")], {1, 2}) == (1, 2)


@pytest.mark.parametrize("ids_with_boxes", [{1, 2}, {1}])
def test_two_classes_of_one_name(ids_with_boxes):
    with pytest.raises(UserError, match=r"categories 1 and 2 are both called 'a'; rename one, or .* data\.classes"):
        decide([(1, "a", None), (2, "a", None)], ids_with_boxes)


def test_data_classes_takes_one_name_as_one_class(tmp_path, coco_table, write_split, read):
    categories = [{"id": 8, "name": "a"}, {"id": 2, "name": "a"}, {"id": 4, "name": "b"}]
    table = coco_table({"a.png": [(8, [1, 1, 9, 9]), (4, [20, 20, 9, 9]), (2, [50, 50, 9, 9])]}, categories)
    for split in ("train", "valid"):
        write_split(tmp_path, split, table)
    dataset = read(tmp_path, classes=["a", "b"])
    assert dataset.label_map == ((2, 4), ("a", "b"))
    assert dataset.splits["valid"].labels.tolist() == [0, 1, 0]


def test_sparse_ids_in_any_order(tmp_path, coco_table, write_split, read):
    categories = [{"id": 90, "name": "zebra"}, {"id": 3, "name": "ant"}, {"id": 17, "name": "bee"}]
    table = coco_table({"a.png": [(90, [10, 10, 20, 20]), (3, [50, 50, 20, 20])]}, categories)
    write_split(tmp_path, "train", table)
    write_split(tmp_path, "valid", table)
    dataset = read(tmp_path)
    assert dataset.label_map.category_ids == (3, 17, 90)
    assert dataset.label_map.names == ("ant", "bee", "zebra")
    assert dataset.splits["train"].record(0).labels.tolist() == [2, 0]
    assert [a["category_id"] for a in dataset.splits["valid"].to_coco()["annotations"]] == [90, 3]


@pytest.mark.parametrize("ids", [(90, 3, 17), (0, 10**12, -4)])
def test_results_carry_the_ids_of_the_file(tmp_path, coco_table, write_split, read, score, ids):
    categories = [{"id": category_id, "name": f"c{category_id}"} for category_id in ids]
    for split in ("train", "valid"):
        boxes = [(ids[0], [10, 10, 20, 20]), (ids[1], [50, 50, 20, 20])]
        write_split(tmp_path, split, coco_table({"a.png": boxes}, categories))
    metrics, results = score(read(tmp_path).splits["valid"])
    assert metrics.overall["AP"] == pytest.approx(1.0)
    assert [result["category_id"] for result in results] == list(ids[:2])


def test_train_decides_for_every_split(tmp_path, coco_table, write_split, read):
    categories = [{"id": i, "name": name, "supercategory": parent} for i, name, parent in FISH]
    write_split(tmp_path, "train", coco_table({"a.png": [(0, [1, 1, 9, 9]), (2, [20, 20, 9, 9])]}, categories))
    write_split(tmp_path, "valid", coco_table({"a.png": [(2, [1, 1, 9, 9])]}, categories))
    dataset = read(tmp_path)
    assert dataset.label_map.category_ids == (0, 1, 2)
    assert dataset.splits["valid"].labels.tolist() == [2]


def test_a_class_with_boxes_in_train_only(tmp_path, coco_table, write_split, read, score):
    categories = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    write_split(tmp_path, "train", coco_table({"a.png": [(1, [1, 1, 9, 9]), (2, [20, 20, 9, 9])]}, categories))
    write_split(tmp_path, "valid", coco_table({"a.png": [(1, [1, 1, 9, 9])]}, categories))
    metrics, _ = score(read(tmp_path).splits["valid"])
    assert [(row["category_id"], row["AP"]) for row in metrics.per_class] == [(1, pytest.approx(1.0)), (2, None)]
    assert metrics.overall["AP"] == pytest.approx(1.0)


def test_a_category_that_train_does_not_know(tmp_path, coco_table, write_split, read):
    write_split(tmp_path, "train", coco_table({"a.png": [(1, [1, 1, 9, 9])]}, [{"id": 1, "name": "a"}]))
    both = [{"id": 1, "name": "a"}, {"id": 9, "name": "new"}]
    file = write_split(tmp_path, "valid", coco_table({"a.png": [(9, [1, 1, 9, 9])]}, both))
    with pytest.raises(UserError, match="category 9") as caught:
        read(tmp_path)
    assert str(file) in str(caught.value)


def test_one_id_with_two_names(tmp_path, coco_table, write_split, read):
    write_split(tmp_path, "train", coco_table({"a.png": [(1, [1, 1, 9, 9])]}, [{"id": 1, "name": "dog"}]))
    write_split(tmp_path, "valid", coco_table({"a.png": [(1, [1, 1, 9, 9])]}, [{"id": 1, "name": "cat"}]))
    with pytest.raises(UserError, match=r"category 1 is 'cat' here but 'dog'"):
        read(tmp_path)


def test_a_label_map_from_elsewhere(tmp_path, write_simple):
    write_simple(tmp_path)
    split = read_split(
        DataConfig("coco", format="coco", root=str(tmp_path)), "valid", LabelMap((0, 1), ("other", "cell"))
    )
    assert split.labels.tolist() == [1]
    with pytest.raises(UserError, match="category 1"):
        read_split(DataConfig("coco", format="coco", root=str(tmp_path)), "valid", LabelMap((0,), ("other",)))


def test_the_same_names_under_other_ids(tmp_path, write_simple, caplog):
    caplog.set_level("INFO")
    write_simple(tmp_path)
    split = read_split(DataConfig("coco", format="coco", root=str(tmp_path)), "valid", LabelMap((0,), ("cell",)))
    assert (split.labels.tolist(), split.label_map.category_ids) == ([0], (1,))
    assert "classes go by name, results have the ids here" in caplog.text
