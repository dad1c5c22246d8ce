"""`data.negatives`: a folder of pictures without objects that joins the train split."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from rfdetr_train.data.reader import PICTURE_ENDINGS, files_below, sizes_of_pictures
from rfdetr_train.data.sample import Dataset, FlatStrings, Split
from rfdetr_train.errors import UserError


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
    return dataset._replace(splits={**dataset.splits, "train": _joined(dataset.splits["train"], paths)})


def _joined(split: Split, paths: list[Path]) -> Split:
    names = [split.file_names[index] for index in range(len(split))] + [str(path) for path in paths]
    first_id = split.image_ids.max(initial=0) + 1
    return replace(
        split,
        file_names=FlatStrings(names),  # an absolute name is not below the split's folder
        image_ids=np.concatenate([split.image_ids, np.arange(first_id, first_id + len(paths))]),
        sizes_px=np.concatenate([split.sizes_px, sizes_of_pictures(paths)]),
        offsets=np.concatenate([split.offsets, np.full(len(paths), split.offsets[-1])]),
    )
