"""The label decision: which categories of a data set are classes, and which label each gets."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from rfdetr_train.data.listing import listed
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

log = logging.getLogger(__name__)

_NO_GROUP = (None, "", "none")  # what files write when a category has no supercategory


class Category(NamedTuple):
    """A row of a COCO file's category table."""

    category_id: int
    name: str
    supercategory: str | None


def decide_label_map(categories: Collection[Category], ids_with_boxes: Collection[int]) -> LabelMap:
    """Labels in the order of rising category id, for every category but the grouping ones.

    A category is a group, and no class, if another category names it as its supercategory and no box is its own:
    Roboflow's exports put such a root in front. A category without boxes that groups nothing stays a class, for its
    boxes may be in another split.
    """
    parents = {(c.supercategory, c.name) for c in categories if c.supercategory not in _NO_GROUP}
    groups = [
        c
        for c in categories
        if c.category_id not in ids_with_boxes and any(parent == c.name != child for parent, child in parents)
    ]
    for group in groups:
        log.info("category %d (%s) groups others and has no boxes: it is no class", group.category_id, group.name)
    classes = sorted(set(categories) - set(groups))
    return LabelMap(tuple(c.category_id for c in classes), tuple(c.name for c in classes))


def check_known(categories: Mapping[int, Category], used_ids: Collection[int], label_map: LabelMap, path: Path) -> None:
    """Refuse a file whose boxes belong to a category that the label map lacks, or that has another name there."""
    known = dict(zip(label_map.category_ids, label_map.names, strict=True))
    for category_id in sorted(used_ids):
        if category_id not in known:
            classes = listed(f"{known_id} {name}" for known_id, name in known.items())
            raise UserError(
                f"{path}: boxes of category {category_id}, which is no class of the train split (its classes: "
                f"{classes}); add such boxes to the train split or remove them here"
            )
        name = categories[category_id].name if category_id in categories else known[category_id]
        if name != known[category_id]:
            raise UserError(
                f"{path}: category {category_id} is {name!r} here but {known[category_id]!r} in the train split; "
                "give both files the same category table"
            )
