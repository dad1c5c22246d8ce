"""The door to every data set: a config section in, splits under one label map out."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rfdetr_train.config import DataConfig, ShapesDataConfig
from rfdetr_train.data.build_split import build_split
from rfdetr_train.data.coco import CocoReader
from rfdetr_train.data.csv_tables import CsvReader
from rfdetr_train.data.raw_split import RawSplit
from rfdetr_train.data.reader import Progress, Reader
from rfdetr_train.data.sample import Dataset, Split
from rfdetr_train.data.shapes import write_shapes
from rfdetr_train.data.voc import VocReader
from rfdetr_train.data.yolo import YoloReader
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

log = logging.getLogger(__name__)

READERS: dict[str, type[Reader]] = {"coco": CocoReader, "yolo": YoloReader, "voc": VocReader, "csv": CsvReader}
"""The formats by their names in `data.format`."""


def read_dataset(
    config: DataConfig, splits: Sequence[str] = ("train", "valid"), progress: Progress | None = None
) -> Dataset:
    """Read the named splits (train, valid, test) of the configured data set; train decides the label map of all.

    `progress` counts the pictures whose sizes must be read from their headers, in formats that do not tell them.

    Raises: UserError for a missing folder, file or split, whatever is wrong in a file, a train split without boxes, and
    a category that train does not know.
    """
    reader = open_reader(config, progress)
    sources = {name: _find_source(reader, config, name) for name in ("train", *splits)}  # before one is parsed
    built = _build(reader, sources["train"], config, "train", None)
    label_map = built["train"].label_map
    for name in splits:
        if name not in built:
            built |= _build(reader, sources[name], config, name, label_map)
    kind = format_of(reader) if config.name == "auto" else config.name
    return Dataset(reader.root, {name: built[name] for name in splits}, label_map, kind)


def read_split(config: DataConfig, name: str, label_map: LabelMap, progress: Progress | None = None) -> Split:
    """Read one split under a label map that is decided already, as a checkpoint holds it.

    Raises: UserError as `read_dataset`.
    """
    reader = open_reader(config, progress)
    return _build(reader, _find_source(reader, config, name), config, name, label_map)[name]


def read_raw(config: DataConfig, name: str, progress: Progress | None = None) -> RawSplit:
    """What the files of a split say, faults included, for a check of a data set.

    With `valid_fraction`, train and valid are both the whole that they are cut from.

    Raises: UserError where a file cannot be understood.
    """
    reader = open_reader(config, progress)
    return reader.read(_origin(config, name), _find_source(reader, config, name))


def open_reader(config: DataConfig, progress: Progress | None = None) -> Reader:
    """The reader of the configured data set; the demo set is written first where it is missing.

    Raises: UserError if the root is missing or no folder, or its format is not known.
    """
    if isinstance(config, ShapesDataConfig):
        return CocoReader(write_shapes(config))
    path = Path(config.root).expanduser().absolute()  # links kept
    if not os.path.isdir(path):
        what = "is no folder" if os.path.exists(path) else "does not exist"
        layouts = _layouts([config.format] if config.format in READERS else READERS)
        raise UserError(f"data.root={config.root}: {path} {what}; give the folder that holds{layouts}")
    readers = {name: reader(path, config.allow_outside_root, progress) for name, reader in READERS.items()}
    return readers[find_format(readers, path) if config.format == "auto" else config.format]


def find_format(readers: Mapping[str, Reader], root: Path) -> str:
    """The format that the data set at `root` is in, by its files; the log says why.

    Raises: UserError if it could be none or several.
    """
    found = {name: evidence for name, reader in readers.items() if (evidence := reader.evidence())}
    if len(found) > 1:
        formats = " or ".join(f"{name} ({evidence.relative_to(root)})" for name, evidence in found.items())
        raise UserError(f"data.root={root}: could be {formats}; say which with data.format={next(iter(found))}")
    if not found:
        raise UserError(
            f"data.root={root}: in no known format, it holds {_content(root)}; known are{_layouts(READERS)}"
        )
    ((name, evidence),) = found.items()
    log.info("%s: format %s, for there is %s", root, name, evidence.relative_to(root))
    return name


def format_of(reader: Reader) -> str:
    """The name of a reader's format."""
    return next(name for name, reader_class in READERS.items() if isinstance(reader, reader_class))


def _layouts(names: Iterable[str]) -> str:
    return "".join(f"\n  {name}: {READERS[name].LAYOUT.format(split='train')}" for name in names)


def _origin(config: DataConfig, name: str) -> str:
    """The split of the files that a split is read from."""
    return name if config.valid_fraction is None or name == "test" else "train"


def _find_source(reader: Reader, config: DataConfig, name: str) -> Path:
    if config.valid_fraction is not None and reader.sources("valid"):
        raise UserError(
            f"data.valid_fraction={config.valid_fraction}: {reader.root} has a valid split already; leave the key out"
        )
    name = _origin(config, name)
    sources = reader.sources(name)
    if len(sources) > 1:
        both = " and ".join(map(str, sources))
        raise UserError(f"data.root={reader.root}: {both} could both be the {name} split; keep one of them there")
    if not sources:
        looked_for = reader.LAYOUT.format(split=name) + " (or val)" * (name == "valid")
        remedy = "; data.valid_fraction=0.1 cuts one from the train split" * (name == "valid")
        raise UserError(
            f"data.root={reader.root}: no {name} split; looked for {looked_for}; the folder holds "
            f"{_content(reader.root)}{remedy}"
        )
    return sources[0]


def _content(root: Path) -> str:
    there = sorted(path.name for path in root.iterdir())
    return (", ".join(there[:10]) + (", ..." if len(there) > 10 else "")) or "nothing"


def _build(reader: Reader, source: Path, config: DataConfig, name: str, label_map: LabelMap | None) -> dict[str, Split]:
    """The split `name`; where train and valid are cut from one, both."""
    origin = _origin(config, name)
    split = build_split(reader.read(origin, source), origin, config.class_of_name, label_map)
    if config.valid_fraction is None or name == "test":
        return {name: split}
    return cut_valid(split, config.valid_fraction, config.split_seed)


def cut_valid(whole: Split, fraction: float, seed: int) -> dict[str, Split]:
    """Cut a share of the pictures off as a valid split, drawn by `seed`; a file under several ids stays together.

    Raises: UserError for a split of one picture.
    """
    names, name_of_picture = np.unique([whole.file_names[i] for i in range(len(whole))], return_inverse=True)
    if len(names) < 2:
        raise UserError(f"data.valid_fraction={fraction}: {whole.folder} has one picture; a valid split needs another")
    count = min(max(round(fraction * len(names)), 1), len(names) - 1)
    drawn = np.isin(name_of_picture, np.random.default_rng(seed).permutation(len(names))[:count])
    train = whole.without(np.flatnonzero(drawn).tolist(), "pictures_cut_off_for_valid")
    valid = whole.without(np.flatnonzero(~drawn).tolist(), "")
    return {"train": train, "valid": replace(valid, name="valid", dropped={})}
