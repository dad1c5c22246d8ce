"""Classes and ids: what is rare, missing, called the same, or numbered oddly."""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from rfdetr_train.data.doctor.examined import ExaminedSplit
from rfdetr_train.data.doctor.finding import EXAMPLES, Finding

FEW_BOXES = 20  # of a class in train


def count_classes(splits: Mapping[str, ExaminedSplit]) -> dict[str, dict[str, int]]:
    """Boxes of each class in each split; classes without a box as well."""
    counts = {name: Counter(split.names[row] for row in split.rows) for name, split in splits.items()}
    tables = [c.name for split in splits.values() if split.class_of_name is None for c in split.raw.categories]
    wanted = [name for split in splits.values() for name in (split.class_of_name or {}).values()]
    names = dict.fromkeys([*tables, *wanted, *(name for count in counts.values() for name in count)])
    return {name: {split: counts[split][name] for split in splits} for name in names}


def check_classes(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Classes that are rare, or in one split only, or called the same but for case and blanks."""
    boxes = {name: f"{name}: {', '.join(f'{n} {split}' for split, n in row.items())}" for name, row in counts.items()}
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, row in counts.items():
        train = row.get("train", 0)
        if not any(row.values()):
            kinds["boxless_classes"].append(name)
        elif not train and "train" in row:
            kinds["unlearnt_classes"].append(boxes[name])
        elif train < FEW_BOXES and "train" in row:
            kinds["rare_classes"].append(boxes[name])
        if train and row.get("valid") == 0:
            kinds["unscored_classes"].append(boxes[name])
    twins: dict[str, list[str]] = defaultdict(list)
    for name in counts:
        twins[" ".join(name.casefold().split())].append(name)
    kinds["twin_classes"] = [" and ".join(map(repr, names)) for names in twins.values() if len(names) > 1]
    for kind, severity, what, remedy in (
        ("unlearnt_classes", "warning", "classes without a box in train", "move some pictures there"),
        ("rare_classes", "warning", f"classes with less than {FEW_BOXES} boxes in train",
         "label more, draw them more often with data.repeat_threshold, or join classes with data.classes"),
        ("unscored_classes", "warning", "classes without a box in valid", "move some pictures there: they have no AP"),
        ("twin_classes", "warning", "names of classes that differ in case or blanks only", "join them in data.classes"),
        ("boxless_classes", "note", "categories without any box", "nothing, if they only group others"),
    ):  # fmt: skip
        if examples := kinds[kind]:
            yield Finding(kind, severity, "", what, len(examples), examples[:EXAMPLES], remedy, [])


def check_ids(split: ExaminedSplit) -> Iterator[Finding]:
    """Annotations of no picture, ids given twice, holes among the ids of categories."""
    raw = split.raw
    orphans = np.flatnonzero(split.raw.owners < 0)
    remedy = "remove them, or add their pictures; training drops them"
    yield from split.of_boxes("orphan_boxes", "warning", "annotations of pictures not in the file", orphans, remedy)
    names = {name: count for name, count in Counter(map(os.path.normpath, raw.file_names)).items() if count > 1}
    yield from _of_ids(
        split, "shared_files", "warning", "files under several image ids", list(names), "keep one of them"
    )
    if raw.box_ids is not None:
        twice = [str(box_id) for box_id, count in Counter(raw.box_ids.tolist()).items() if count > 1]
        remedy = "nothing here, where boxes are numbered anew; pycocotools scores such a file wrongly and says nothing"
        yield from _of_ids(split, "shared_box_ids", "note", "annotation ids given to several boxes", twice, remedy)
    ids = sorted(category.category_id for category in raw.categories)
    holes = [] if raw.names_decide or not ids else sorted(set(range(ids[0], min(ids[-1], ids[0] + 10_000))) - set(ids))
    remedy = "nothing here, where classes are numbered anew; other programs may take them for classes"
    yield from _of_ids(split, "id_holes", "note", "category ids left out", list(map(str, holes)), remedy)


def _of_ids(
    split: ExaminedSplit, kind: str, severity: str, what: str, ids: list[str], remedy: str
) -> Iterator[Finding]:
    if ids:
        yield Finding(kind, severity, split.name, what, len(ids), ids[:EXAMPLES], remedy, [])
