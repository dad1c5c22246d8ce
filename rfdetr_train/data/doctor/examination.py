"""A data set read for its faults: whatever is refused is a finding, and the rest is looked at all the same."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rfdetr_train.config import DataConfig, ModelConfig
from rfdetr_train.data.build_split import build_split
from rfdetr_train.data.dataset import cut_valid, format_of, open_reader, read_raw
from rfdetr_train.data.doctor.boxes import check_boxes
from rfdetr_train.data.doctor.classes import check_classes, check_ids, count_classes
from rfdetr_train.data.doctor.duplicates import check_duplicates
from rfdetr_train.data.doctor.examined import ExaminedSplit
from rfdetr_train.data.doctor.finding import Finding, ranked
from rfdetr_train.data.doctor.measure import measure_pictures
from rfdetr_train.data.doctor.pictures import check_files, check_pictures
from rfdetr_train.data.doctor.statistics import describe_splits
from rfdetr_train.data.placement import Placement
from rfdetr_train.data.raw_split import RawSplit, split_of_named_boxes
from rfdetr_train.data.reader import Progress, Reader, files_below
from rfdetr_train.data.sample import Split
from rfdetr_train.errors import UserError


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
    measured = dict(zip(paths, measure_pictures(paths, config.max_megapixels, on_picture), strict=True))
    splits = {
        name: ExaminedSplit(name, raw, [measured[raw.folder / file] for file in raw.file_names], config.class_of_name)
        for name, raw in raws.items()
    }
    train = _train_split(config, splits, findings)
    counts = count_classes(splits)
    findings += _check(config, model, splits, complete=not findings)
    findings += check_classes(counts)
    placement = Placement.of(config.resize, model)
    return Examination(
        splits, train, ranked(findings), {"classes": counts, **describe_splits(splits, model, placement)}
    )


def _check(
    config: DataConfig, model: ModelConfig, splits: dict[str, ExaminedSplit], complete: bool
) -> Iterator[Finding]:
    for split in splits.values():
        yield from check_pictures(split, config.on_error)
        yield from check_boxes(split, model, Placement.of(config.resize, model))
        yield from check_ids(split)
    yield from check_duplicates(splits)
    if complete:  # else the pictures of a split that was refused would count as nobody's
        yield from check_files(splits)


def _read(config: DataConfig, progress: Progress | None, findings: list[Finding]) -> dict[str, RawSplit]:
    """What the files of each split say; with `valid_fraction`, valid is within train."""
    reader = _or_refusal(findings, "", open_reader, config)
    if reader is None:
        return {}
    if config.name == "auto":
        config = replace(config, format=format_of(reader))  # found out once
    has_test = _or_refusal(findings, "test", reader.sources, "test")
    names = ["train"] + ["valid"] * (config.valid_fraction is None) + ["test"] * bool(has_test)
    read = {name: _or_refusal(findings, name, read_raw, config, name, progress) for name in names}
    if config.negatives is not None:
        read["negatives"] = _negatives(reader, Path(config.negatives))
    return {name: raw for name, raw in read.items() if raw is not None}


def _negatives(reader: Reader, folder: Path) -> RawSplit:
    """`data.negatives` as a split without boxes."""
    paths = sorted(files_below(folder))
    names = [str(path.relative_to(folder)) for path in paths]
    sizes_px = reader.sizes_px(folder, names)
    return split_of_named_boxes(folder, folder, names, sizes_px, [[]] * len(names), lambda xywh, _: xywh)


def _train_split(config: DataConfig, splits: dict[str, ExaminedSplit], findings: list[Finding]) -> Split | None:
    """The train split as training builds it; what it would refuse, there or in another split, is found."""
    if "train" not in splits:
        return None
    train = _or_refusal(findings, "train", build_split, splits["train"].raw, "train", config.class_of_name)
    if train is None or not splits["train"].readable:
        return None
    for name in splits.keys() - {"train"}:
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
