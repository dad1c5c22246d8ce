"""`data.negatives`: a folder of pictures without objects that joins the train split."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from rfdetr_train.data.image_file import check_image
from rfdetr_train.data.sample import Dataset, FlatStrings, Split
from rfdetr_train.errors import UserError

_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")


def with_negatives(dataset: Dataset, folder: str | Path, max_megapixels: float) -> Dataset:
    """The data set with all pictures under `folder` (and its sub-folders) in its train split, without boxes.

    Raises: UserError if there is no such folder, no picture in it, or one that belongs to a split already.
    """
    found = (path for path in Path(folder).absolute().rglob("*") if path.suffix.lower() in _ENDINGS)
    paths = sorted(path for path in found if not path.name.startswith("."))  # macOS puts a ._a.jpg beside a.jpg
    if not paths:
        raise UserError(f"data.negatives={folder}: no such folder, or no picture in it ({', '.join(_ENDINGS)})")
    for split in dataset.splits.values():
        shared = {split.path(index) for index in range(len(split))}.intersection(paths)
        if shared:
            raise UserError(f"data.negatives={folder}: {min(shared)} is in the {split.name} split; give another folder")
    return dataset._replace(splits={**dataset.splits, "train": _joined(dataset.splits["train"], paths, max_megapixels)})


def _joined(split: Split, paths: list[Path], max_megapixels: float) -> Split:
    with ThreadPoolExecutor() as pool:
        sizes = np.array(list(pool.map(partial(_size_px, max_megapixels=max_megapixels), paths)), dtype=np.int64)
    names = [split.file_names[index] for index in range(len(split))] + [str(path) for path in paths]
    first_id = split.image_ids.max(initial=0) + 1
    return replace(
        split,
        file_names=FlatStrings(names),  # an absolute name is not below the split's folder
        image_ids=np.concatenate([split.image_ids, np.arange(first_id, first_id + len(paths))]),
        sizes_px=np.concatenate([split.sizes_px, sizes]),
        offsets=np.concatenate([split.offsets, np.full(len(paths), split.offsets[-1])]),
    )


def _size_px(path: Path, max_megapixels: float) -> tuple[int, int]:
    try:
        return check_image(path, max_megapixels)
    except UserError:
        return (1, 1)  # the check of all pictures tells what to do about it
