"""A data set read for its faults: whatever is refused is a finding, and the rest is looked at all the same."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rfdetr_train.config import DataConfig, ModelConfig
from rfdetr_train.data.build_split import build_split
from rfdetr_train.data.canvas import Placement
from rfdetr_train.data.dataset import cut_valid, open_reader, read_raw
from rfdetr_train.data.doctor.annotations import check_boxes, check_classes, check_ids, count_classes, sides_in_view_px
from rfdetr_train.data.doctor.examined import ExaminedSplit, Finding, measure, ranked
from rfdetr_train.data.doctor.pictures import check_duplicates, check_files, check_pictures
from rfdetr_train.data.image_file import Progress, in_threads
from rfdetr_train.data.raw_split import RawSplit, split_of_named_boxes
from rfdetr_train.data.reader import files_below
from rfdetr_train.data.sample import Split
from rfdetr_train.errors import UserError

SIDE_EDGES_PX = [0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
ASPECT_EDGES = [0, 0.125, 0.25, 0.35, 0.5, 0.7, 0.9, 1.1, 1.4, 2, 2.8, 4, 8]
COUNT_EDGES = [0, 1, 2, 3, 5, 8, 12, 20, 30, 50, 100, 200, 300, 500, 1000]
MOST_SIZES = 5


class Examination(NamedTuple):
    """What is known of a data set."""

    splits: dict[str, ExaminedSplit]
    """Those that can be read."""
    train: Split | None
    """The train split as training has it, unreadable pictures left out; None where that would be refused."""
    findings: list[Finding]
    """The worst first."""
    statistics: dict[str, Any]
    """See `describe_splits`; `classes` has the boxes of each class in each split."""


def examine(
    config: DataConfig, model: ModelConfig, on_header: Progress | None = None, on_picture: Progress | None = None
) -> Examination:
    """Read train, valid and (where there are any) test and negatives, look at every picture once, and check it all.

    The model tells at which size it sees the boxes, and how many of them it can find.
    """
    findings: list[Finding] = []
    raws = _read(config, on_header, findings)
    paths = list(dict.fromkeys(raw.folder / name for raw in raws.values() for name in raw.file_names))
    looked_at = in_threads(partial(measure, max_megapixels=config.max_megapixels), paths, on_picture)
    measured = dict(zip(paths, looked_at, strict=True))
    splits = {
        name: ExaminedSplit(name, raw, [measured[raw.folder / file] for file in raw.file_names], config.class_of_name)
        for name, raw in raws.items()
    }
    train = _train_split(config, splits, findings)
    complete, counts, placement = not findings, count_classes(splits), Placement.of(config.resize, model)
    for split in splits.values():
        findings += check_pictures(split, config.on_error)
        findings += check_boxes(split, model, placement)
        findings += check_ids(split)
    findings += check_duplicates(splits)
    if complete:  # else the pictures of a split that was refused would count as nobody's
        findings += check_files(splits)
    findings += check_classes(counts)
    statistics = {"classes": counts, **describe_splits(splits, model, placement)}
    return Examination(splits, train, ranked(findings), statistics)


def _read(config: DataConfig, progress: Progress | None, findings: list[Finding]) -> dict[str, RawSplit]:
    """What the files of each split say; with `valid_fraction`, valid is within train."""
    reader = _or_refusal(findings, "", open_reader, config)
    if reader is None:
        return {}
    if config.name == "auto":
        config = replace(config, format=reader.NAME)  # found out once
    has_test = _or_refusal(findings, "test", reader.sources, "test")
    names = ["train"] + ["valid"] * (config.valid_fraction is None) + ["test"] * bool(has_test)
    read = {name: _or_refusal(findings, name, read_raw, config, name, progress) for name in names}
    if config.negatives is not None:  # a split without boxes
        folder = Path(config.negatives)
        files = [str(path.relative_to(folder)) for path in sorted(files_below(folder))]
        sizes_px = reader.sizes_px(folder, files)
        read["negatives"] = split_of_named_boxes(folder, folder, files, sizes_px, [[] for _ in files])
    return {name: raw for name, raw in read.items() if raw is not None}


def _train_split(config: DataConfig, splits: dict[str, ExaminedSplit], findings: list[Finding]) -> Split | None:
    """The train split as training builds it; what it would refuse, there or in another split, is found."""
    if "train" not in splits:
        return None
    train = _or_refusal(findings, "train", build_split, splits["train"].raw, "train", config.class_of_name)
    if train is None or not splits["train"].readable:
        return None
    for name in (name for name in splits if name != "train"):
        _or_refusal(findings, name, build_split, splits[name].raw, name, config.class_of_name, train.label_map)
    broken = set(range(len(train))).difference(splits["train"].readable)
    train = replace(train.without(sorted(broken), "unreadable_pictures"), max_megapixels=config.max_megapixels)
    if config.valid_fraction is None:
        return train
    cut = _or_refusal(findings, "train", cut_valid, train, config.valid_fraction, config.split_seed)
    return cut["train"] if cut else None


def _or_refusal(findings: list[Finding], split: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` returns; None where it refuses, which is a finding, once."""
    try:
        return work(*arguments)
    except UserError as error:
        message = str(error)
    if all(message not in finding.examples for finding in findings):
        what, remedy = "training refuses the data set", "correct what the message says"
        findings.append(Finding("refused", "error", split, what, 1, [message], remedy, []))
    return None


def describe_splits(splits: Mapping[str, ExaminedSplit], model: ModelConfig, placement: Placement) -> dict[str, Any]:
    """Plain values: `splits` by name, and `histograms` by name, {edges, counts: {split: [...]}}.

    A bin goes from its edge to the next one, that not included; the last one has no end.
    """
    return {
        "splits": {name: _describe(split) for name, split in splits.items()},
        "histograms": {
            "box_sides_px": _histogram(SIDE_EDGES_PX, splits, lambda s: sides_in_view_px(s, model, placement)),
            "box_aspects": _histogram(ASPECT_EDGES, splits, _box_aspects),
            "boxes_per_picture": _histogram(COUNT_EDGES, splits, lambda s: s.boxes_per_picture[list(s.readable)]),
            "picture_aspects": _histogram(
                ASPECT_EDGES, splits, lambda s: [p.size_px[1] / p.size_px[0] for p in s.readable.values()]
            ),
        },
    }


def _describe(split: ExaminedSplit) -> dict[str, Any]:
    sizes = Counter(f"{picture.size_px[1]}x{picture.size_px[0]}" for picture in split.readable.values())
    common = dict(sizes.most_common(MOST_SIZES))
    return {
        "source": str(split.raw.source),
        "pictures": len(split.pictures),
        "boxes": len(split.raw.boxes_xywh),
        "crowds": int(split.raw.crowd.sum()),
        "sizes": common,
        "pictures_of_other_sizes": sizes.total() - sum(common.values()),
    }


def _box_aspects(split: ExaminedSplit) -> np.ndarray:
    """Width over height, of the boxes that have both."""
    sizes = split.raw.boxes_xywh[split.rows, 2:]
    sizes = sizes[(sizes > 0).all(axis=1)]
    return sizes[:, 0] / sizes[:, 1]


def _histogram(edges: Sequence[float], splits: Mapping[str, ExaminedSplit], values_of: Callable) -> dict[str, Any]:
    counts = {name: np.histogram(values_of(split), [*edges, np.inf])[0].tolist() for name, split in splits.items()}
    return {"edges": list(edges), "counts": counts}
