"""The check of all pictures before training: what is missing or broken is found now, not in the third epoch."""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations, islice

from rfdetr_train import distributed
from rfdetr_train.data.image_file import MAX_MEGAPIXELS, Progress, check_image, in_threads
from rfdetr_train.data.sample import Dataset, Split
from rfdetr_train.errors import UserError, listed

log = logging.getLogger(__name__)


def check_images(
    dataset: Dataset, on_error: str, progress: Progress | None = None, max_megapixels: float = MAX_MEGAPIXELS
) -> Dataset:
    """Check every picture of a data set: present, a picture, complete, not too large, of the annotated size.

    Unreadable ones are refused all at once (on_error="error") or left out with a warning ("skip"); then every picture
    is decoded, so that one with a fault in its middle is found now, and what breaks later is skipped then. Another size
    than annotated is a warning: the boxes are scaled to the picture, which is right unless it was turned or cropped.

    Raises: UserError with the list of unreadable pictures, or if skipping leaves a split without pictures.
    """
    _warn_of_shared(dataset)
    paths = [split.path(index) for split in dataset.splits.values() for index in range(len(split))]
    check = partial(check_image, max_megapixels=max_megapixels, decode=on_error == "skip")

    def look() -> list[str | tuple[int, int]]:
        """The size of each picture, or why it cannot be read."""
        return [str(seen) if isinstance(seen, UserError) else seen for seen in in_threads(check, paths, progress)]

    seen = iter(distributed.from_main(look))  # the other processes are told: one look at a file is enough
    splits, faults = {}, []
    for name, unchecked in dataset.splits.items():
        split = replace(unchecked, max_megapixels=max_megapixels, skips_unreadable=on_error == "skip")
        of_split = dict(enumerate(islice(seen, len(split))))
        broken = {index: message for index, message in of_split.items() if isinstance(message, str)}
        _warn_of_sizes(split, {i: size_px for i, size_px in of_split.items() if not isinstance(size_px, str)})
        try:
            splits[name] = _without_broken(split, broken, on_error)
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError("\n".join(faults))
    return dataset._replace(splits=splits)


def _warn_of_shared(dataset: Dataset) -> None:
    """A score on pictures that were learnt from means nothing."""
    files = {
        name: {os.path.realpath(split.path(i)) for i in range(len(split))} for name, split in dataset.splits.items()
    }
    for one, other in combinations(files, 2):
        shared = files[one] & files[other]
        if shared:
            message = "%d PICTURES ARE IN %s AND IN %s, so the score says little of new ones; such as %s"
            log.warning(message, len(shared), one.upper(), other.upper(), min(shared))


def _warn_of_sizes(split: Split, sizes_px: Mapping[int, tuple[int, int]]) -> None:
    """`sizes_px`: (height, width) of pictures by their index."""
    resized = []
    for index, (height, width) in sizes_px.items():
        annotated_height, annotated_width = split.sizes_px[index].tolist()
        if (height, width) != (annotated_height, annotated_width):
            sizes = f"annotated as {annotated_width}x{annotated_height}, but the picture is {width}x{height}"
            resized.append(f"{split.path(index)}: {sizes}")
    if resized:
        message = "%s: %d pictures, upright by EXIF, are not of the annotated size; their boxes are scaled to them:\n%s"
        log.warning(message, split.name, len(resized), _lines(resized))


def _without_broken(split: Split, broken: Mapping[int, str], on_error: str) -> Split:
    """`broken`: what is wrong with pictures, by their index."""
    if not broken:
        return split
    lines = _lines(broken.values())
    account = f"{split.name}: {len(broken)} of {len(split)} pictures cannot be read"
    if on_error == "error":
        remedy = "mend or remove them, or leave them out with data.on_error=skip"
        raise UserError(f"{account}; {remedy}:\n{lines}")
    if len(broken) == len(split):
        raise UserError(f"{account}, so that none is left:\n{lines}")
    log.warning("%s and are left out (data.on_error=skip):\n%s", account, lines)
    return split.without(list(broken), "unreadable_pictures")


def _lines(messages: Iterable[str]) -> str:
    return "  " + listed(messages, separator="\n  ")
