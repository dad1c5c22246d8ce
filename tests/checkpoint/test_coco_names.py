from rfdetr_train.checkpoint.coco_names import COCO_LOGITS, COCO_NAMES


def test_names_by_their_sparse_ids() -> None:
    """As in the categories of instances_val2017.json."""
    assert len(COCO_NAMES) == 80
    known = {1: "person", 11: "fire hydrant", 13: "stop sign", 17: "cat", 18: "dog", 25: "giraffe", 27: "backpack",
             31: "handbag", 44: "bottle", 46: "wine glass", 65: "bed", 67: "dining table", 70: "toilet", 72: "tv",
             82: "refrigerator", 84: "book", 90: "toothbrush"}  # fmt: skip
    assert {category_id: COCO_NAMES[category_id] for category_id in known} == known
    assert [k for k, name in enumerate(COCO_LOGITS) if name is None] == [0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83]
