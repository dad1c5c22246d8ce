"""Which categories become classes."""

import pytest

from rfdetr_train.data.categories import Category, decide_label_map
from rfdetr_train.data.coco import read_coco, read_split
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

FISH = [(0, "peixos", "none"), (1, "peix", "peixos"), (2, "taca", "peixos")]


def decide(rows, ids_with_boxes):
    return decide_label_map([Category(*row) for row in rows], ids_with_boxes).category_ids


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


def test_sparse_ids_in_any_order(tmp_path, coco_table, write_split):
    categories = [{"id": 90, "name": "zebra"}, {"id": 3, "name": "ant"}, {"id": 17, "name": "bee"}]
    table = coco_table({"a.png": [(90, [10, 10, 20, 20]), (3, [50, 50, 20, 20])]}, categories)
    write_split(tmp_path, "train", table)
    write_split(tmp_path, "valid", table)
    dataset = read_coco(tmp_path)
    assert dataset.label_map.label_of_id == {3: 0, 17: 1, 90: 2}
    assert dataset.label_map.names == ("ant", "bee", "zebra")
    assert dataset.splits["train"].record(0).labels.tolist() == [2, 0]
    assert [a["category_id"] for a in dataset.splits["valid"].to_coco()["annotations"]] == [90, 3]


def test_train_decides_for_every_split(tmp_path, coco_table, write_split):
    categories = [{"id": i, "name": name, "supercategory": parent} for i, name, parent in FISH]
    write_split(tmp_path, "train", coco_table({"a.png": [(0, [1, 1, 9, 9]), (2, [20, 20, 9, 9])]}, categories))
    write_split(tmp_path, "valid", coco_table({"a.png": [(2, [1, 1, 9, 9])]}, categories))
    dataset = read_coco(tmp_path)
    assert dataset.label_map.category_ids == (0, 1, 2)
    assert dataset.splits["valid"].labels.tolist() == [2]


def test_a_class_with_boxes_in_train_only(tmp_path, coco_table, write_split):
    categories = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    write_split(tmp_path, "train", coco_table({"a.png": [(1, [1, 1, 9, 9]), (2, [20, 20, 9, 9])]}, categories))
    write_split(tmp_path, "valid", coco_table({"a.png": [(1, [1, 1, 9, 9])]}, categories))
    truth = read_coco(tmp_path).splits["valid"].to_coco()
    assert [c["id"] for c in truth["categories"]] == [1, 2]
    assert [a["category_id"] for a in truth["annotations"]] == [1]


def test_a_category_that_train_does_not_know(tmp_path, coco_table, write_split):
    write_split(tmp_path, "train", coco_table({"a.png": [(1, [1, 1, 9, 9])]}, [{"id": 1, "name": "a"}]))
    both = [{"id": 1, "name": "a"}, {"id": 9, "name": "new"}]
    file = write_split(tmp_path, "valid", coco_table({"a.png": [(9, [1, 1, 9, 9])]}, both))
    with pytest.raises(UserError, match="category 9") as caught:
        read_coco(tmp_path)
    assert str(file) in str(caught.value)


def test_one_id_with_two_names(tmp_path, coco_table, write_split):
    write_split(tmp_path, "train", coco_table({"a.png": [(1, [1, 1, 9, 9])]}, [{"id": 1, "name": "dog"}]))
    write_split(tmp_path, "valid", coco_table({"a.png": [(1, [1, 1, 9, 9])]}, [{"id": 1, "name": "cat"}]))
    with pytest.raises(UserError, match=r"category 1 is 'cat' here but 'dog'"):
        read_coco(tmp_path)


def test_a_label_map_from_elsewhere(tmp_path, write_simple):
    write_simple(tmp_path)
    split = read_split(tmp_path, "valid", LabelMap((0, 1), ("other", "cell")))
    assert split.labels.tolist() == [1]
    with pytest.raises(UserError, match="category 1"):
        read_split(tmp_path, "valid", LabelMap((0,), ("other",)))
