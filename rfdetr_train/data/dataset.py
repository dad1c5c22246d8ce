"""The door to every data set: a config section in, splits under one label map out."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rfdetr_train.config import DataConfig, ShapesDataConfig
from rfdetr_train.data.build_split import build_split, decide_label_map
from rfdetr_train.data.coco import CocoReader
from rfdetr_train.data.csv_tables import CsvReader
from rfdetr_train.data.image_file import Progress
from rfdetr_train.data.raw_split import RawSplit
from rfdetr_train.data.reader import PICTURE_ENDINGS, SPLIT_NAMES, Reader, files_below, sizes_of_pictures
from rfdetr_train.data.sample import Dataset, FlatStrings, Split
from rfdetr_train.data.shapes import write_shapes
from rfdetr_train.data.voc import VocReader
from rfdetr_train.data.yolo import YoloReader
from rfdetr_train.errors import UserError, listed
from rfdetr_train.labels import LabelMap

log = logging.getLogger(__name__)

READERS: dict[str, type[Reader]] = {reader.NAME: reader for reader in (CocoReader, YoloReader, VocReader, CsvReader)}
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
        if not len(built[name]):
            remedy = "; remove it, and data.valid_fraction=0.1 cuts one from the train split" * (name == "valid")
            raise UserError(f"{sources[name]}: the {name} split has no pictures{remedy}")
    kind = reader.NAME if config.name == "auto" else config.name
    return Dataset(reader.root, {name: built[name] for name in splits}, label_map, kind)


def read_split(config: DataConfig, name: str, label_map: LabelMap, progress: Progress | None = None) -> Split:
    """Read one split under a label map that is decided already, as a checkpoint holds it.

    A COCO or YOLO data set with exactly its class names keeps its own ids, whatever those in `label_map` are.

    Raises: UserError as `read_dataset`.
    """
    reader = open_reader(config, progress)
    return _build(reader, _find_source(reader, config, name, trains=False), config, name, label_map, by_name=True)[name]


def read_raw(config: DataConfig, name: str, progress: Progress | None = None) -> RawSplit:
    """What the files of a split say, faults included, for a check of a data set.

    With `valid_fraction`, train and valid are both the whole that they are cut from.

    Raises: UserError where a file cannot be understood.
    """
    reader = open_reader(config, progress)
    return reader.read_inside(_origin(config, name), _find_source(reader, config, name))


def open_reader(config: DataConfig, progress: Progress | None = None) -> Reader:
    """The reader of the configured data set; the demo set is written first where it is missing.

    Raises: UserError if the root is missing or no folder, or its format is not known.
    """
    if isinstance(config, ShapesDataConfig):
        return CocoReader(write_shapes(config))
    path = Path(config.root).expanduser().absolute()  # links kept
    if not os.path.isdir(path):
        what = f"is no folder, but {path.parent} is" if os.path.exists(path) else "does not exist"
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
            f"data.root={root}: in no known format, it holds {_content(root)}; known are"
            f"{_layouts(READERS)}{_hint(root)}"
        )
    ((name, evidence),) = found.items()
    log.info("%s: format %s, for there is %s", root, name, evidence.relative_to(root))
    return name


def _layouts(names: Iterable[str]) -> str:
    return "".join(f"\n  {name}: {READERS[name].LAYOUT.format(split='train')}" for name in names)


def _origin(config: DataConfig, name: str) -> str:
    """The split of the files that a split is read from."""
    return name if config.valid_fraction is None or name == "test" else "train"


def _find_source(reader: Reader, config: DataConfig, name: str, trains: bool = True) -> Path:
    cut = config.valid_fraction is not None
    if cut and any(reader.read("valid", source).file_names for source in reader.sources("valid")):
        raise UserError(
            f"data.valid_fraction={config.valid_fraction}: {reader.root} has a valid split already; leave the key out"
        )
    name = _origin(config, name)
    sources = reader.sources(name)
    if len(sources) > 1:
        both = " and ".join(map(str, sources))
        raise UserError(f"data.root={reader.root}: {both} could both be the {name} split; keep one of them there")
    if not sources:
        looked_for = reader.LAYOUT.format(split=name) + " (or val, validation)" * (name == "valid")
        there = [split for split in SPLIT_NAMES if reader.sources(split)]
        remedy = "; data.valid_fraction=0.1 cuts one from the train split" * (name == "valid")
        remedy = remedy if trains else f"; choose another with split=, of {', '.join(there)}" if there else ""
        raise UserError(
            f"data.root={reader.root}: no {name} split; looked for {looked_for}; the folder holds "
            f"{_content(reader.root)}{remedy}{_hint(reader.root)}"
        )
    return sources[0]


def _content(root: Path) -> str:
    there = sorted(path.name for path in root.iterdir())
    files = sorted(path.name for path in root.glob("annotations/*.json"))
    inner = f" (annotations: {listed(files)})" if files else ""
    return (", ".join(there[:10]) + (", ..." if len(there) > 10 else "") + inner) or "nothing"


def _hint(root: Path) -> str:
    """What else to do about a folder that almost is a data set."""
    if (root / "obj.data").is_file():
        return "\nobj.data is Darknet's: export the data set as Ultralytics YOLO"
    years = sorted(path for form in ("VOCdevkit/VOC[0-9]*", "VOC[0-9]*") for path in root.glob(form) if path.is_dir())
    return f"\nthere are {listed(years)}: give one of them" if years else ""


def _build(
    reader: Reader, source: Path, config: DataConfig, name: str, label_map: LabelMap | None, by_name: bool = False
) -> dict[str, Split]:
    """The split `name`; where train and valid are cut from one, both."""
    origin = _origin(config, name)
    raw = reader.read_inside(origin, source)
    has_ids = isinstance(reader, CocoReader | YoloReader)
    if by_name and label_map and config.class_of_name is None and has_ids:
        label_map = _with_own_ids(raw, label_map)
    split = build_split(raw, origin, config.class_of_name, label_map)
    if config.valid_fraction is None or name == "test":
        return {name: split}
    return cut_valid(split, config.valid_fraction, config.split_seed)


def _with_own_ids(raw: RawSplit, label_map: LabelMap) -> LabelMap:
    """The label map with the split's category ids, where its categories are the classes by their names."""
    own = decide_label_map(raw.categories, set(raw.category_ids.tolist()), None, raw.source)
    id_of_name = dict(zip(own.names, own.category_ids, strict=True))
    if set(own.names) != set(label_map.names) or own == label_map:
        return label_map
    ids = tuple(id_of_name[name] for name in label_map.names)
    if ids != label_map.category_ids:
        log.info("%s: other category ids than in training; classes go by name, results have the ids here", raw.source)
    return LabelMap(ids, label_map.names)


def cut_valid(whole: Split, fraction: float, seed: int) -> dict[str, Split]:
    """Cut a share of the pictures off as a valid split, drawn by `seed`; a file under several ids stays together.

    Raises: UserError for a split of one picture.
    """
    names, name_of_picture = np.unique(
        [os.path.normpath(whole.file_names[i]) for i in range(len(whole))], return_inverse=True
    )
    if len(names) < 2:
        raise UserError(f"data.valid_fraction={fraction}: {whole.folder} has one picture; a valid split needs another")
    count = min(max(round(fraction * len(names)), 1), len(names) - 1)
    drawn = np.isin(name_of_picture, np.random.default_rng(seed).permutation(len(names))[:count])
    train = whole.without(np.flatnonzero(drawn).tolist(), "pictures_cut_off_for_valid")
    valid = whole.without(np.flatnonzero(~drawn).tolist(), "")
    lost = sorted(set(valid.labels.tolist()) - set(train.labels.tolist()))
    if lost:
        classes = listed(whole.label_map.names[label] for label in lost)
        log.warning(
            "data.valid_fraction=%s: no box left in train of %s; try another data.split_seed", fraction, classes
        )
    return {"train": train, "valid": replace(valid, name="valid", dropped={})}


def with_negatives(dataset: Dataset, folder: str | Path) -> Dataset:
    """The data set with all pictures under `folder` (and its sub-folders) in its train split, without boxes.

    Raises: UserError if there is no such folder, no picture in it, or one that belongs to a split already.
    """
    paths = sorted(files_below(Path(folder).absolute()))
    if not paths:
        raise UserError(f"data.negatives={folder}: no such folder, or no picture in it ({', '.join(PICTURE_ENDINGS)})")
    for split in dataset.splits.values():
        shared = {split.path(index) for index in range(len(split))}.intersection(paths)
        if shared:
            raise UserError(f"data.negatives={folder}: {min(shared)} is in the {split.name} split; give another folder")
    train = dataset.splits["train"]
    names = [train.file_names[index] for index in range(len(train))]
    first_id = train.image_ids.max(initial=0) + 1
    joined = replace(
        train,
        file_names=FlatStrings(names + list(map(str, paths))),  # an absolute name is not below the split's folder
        image_ids=np.concatenate([train.image_ids, np.arange(first_id, first_id + len(paths))]),
        sizes_px=np.concatenate([train.sizes_px, sizes_of_pictures(paths)]),
        offsets=np.concatenate([train.offsets, np.full(len(paths), train.offsets[-1])]),
    )
    return dataset._replace(splits={**dataset.splits, "train": joined})
