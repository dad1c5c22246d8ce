"""The label decision: which categories of a data set are classes, and which label each gets."""

import difflib
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rfdetr_train.data.listing import listed
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

log = logging.getLogger(__name__)

_NO_GROUP = (None, "", "none")  # what files write when a category has no supercategory


class Category(NamedTuple):
    """A row of a category table."""

    category_id: int
    name: str
    supercategory: str | None = None


def decide_label_map(
    categories: Collection[Category],
    ids_with_boxes: Collection[int],
    class_of_name: Mapping[str, str] | None,
    source: Path,
) -> LabelMap:
    """Labels in the order of rising category id; a class that `class_of_name` joins has the lowest id of its members.

    Without `class_of_name`, every category is a class but the grouping ones.

    Raises: UserError for boxes of a category without a row, for a name that two classes share, and for names in
    `class_of_name` that are none of the data set.
    """
    unlisted = sorted(set(ids_with_boxes) - {c.category_id for c in categories})
    if unlisted:
        raise UserError(f"{source}: boxes of category {unlisted[0]}, which is not in the file's category table; add it")
    if class_of_name is None:
        classes = _without_groups(categories, ids_with_boxes)
        _refuse_one_name_twice(classes, source)
    else:
        classes = _joined(categories, class_of_name, source)
    classes.sort()
    return LabelMap(tuple(c.category_id for c in classes), tuple(c.name for c in classes))


def _without_groups(categories: Collection[Category], ids_with_boxes: Collection[int]) -> list[Category]:
    """A category is a group, and no class, if another names it as its supercategory and no box is its own.

    Roboflow's exports put such a root in front, sometimes with a class's own name. A category without boxes that groups
    nothing stays a class, for its boxes may be in another split.
    """
    parents = {(c.supercategory, c.category_id) for c in categories if c.supercategory not in _NO_GROUP}
    grouping = {c for c in categories if any(parent == c.name and child != c.category_id for parent, child in parents)}
    groups = {c for c in grouping if c.category_id not in ids_with_boxes}
    for group in sorted(groups):
        log.info("category %d (%s) groups others and has no boxes: it is no class", group.category_id, group.name)
    return [c for c in categories if c not in groups]


def _refuse_one_name_twice(classes: Sequence[Category], source: Path) -> None:
    """Two classes that nobody can tell apart by name: no score of either would mean anything."""
    id_of_name: dict[str, int] = {}
    for category in classes:
        if category.name in id_of_name:
            raise UserError(
                f"{source}: categories {id_of_name[category.name]} and {category.category_id} are both called "
                f"{category.name!r}; rename one, or list the wanted names in data.classes, which takes them as one"
            )
        id_of_name[category.name] = category.category_id


def _joined(categories: Collection[Category], class_of_name: Mapping[str, str], source: Path) -> list[Category]:
    names = {c.name for c in categories}
    for name in class_of_name:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its classes are {listed(sorted(names))}"
            raise UserError(f"data.classes: {source} has no class {name!r}; {hint}")
    taken = set(class_of_name.values()) & names - set(class_of_name)
    if taken:
        raise UserError(
            f"data.classes: {min(taken)!r} is a class of the data set as well, but none of those that it joins; list "
            "it with them, or choose another name"
        )
    lowest_id: dict[str, int] = {}
    for category in sorted(categories):
        if category.name in class_of_name:
            lowest_id.setdefault(class_of_name[category.name], category.category_id)
    return [Category(category_id, name) for name, category_id in lowest_id.items()]
