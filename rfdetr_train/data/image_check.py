"""The check of all pictures before training: what is missing or broken is found now, not in the third epoch."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import NamedTuple

from rfdetr_train import distributed
from rfdetr_train.data.image_file import MAX_MEGAPIXELS, check_image
from rfdetr_train.data.listing import listed
from rfdetr_train.data.sample import Dataset, Split
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

_THREADS = min(16, 4 * (os.cpu_count() or 1))  # the work is mostly waiting for files

Progress = Callable[[int, int], None]
"""Called with (pictures checked so far, pictures in all)."""


class _Finding(NamedTuple):
    picture: int
    message: str


def check_images(
    dataset: Dataset, on_error: str, progress: Progress | None = None, max_megapixels: float = MAX_MEGAPIXELS
) -> Dataset:
    """Check every picture of a data set: present, a picture, complete, not too large, of the annotated size.

    Unreadable ones are refused all at once (on_error="error") or left out with a warning ("skip"); then every picture
    is decoded, so that one with a fault in its middle does not end the run later. Another size than annotated
    is a warning: the boxes are scaled to the picture, which is right unless it was turned or cropped.

    Raises: UserError with the list of unreadable pictures, or if skipping leaves a split without pictures.
    """
    _warn_of_shared(dataset)
    done, total = 0, sum(len(split) for split in dataset.splits.values())
    splits, faults = {}, []
    for name, unchecked in dataset.splits.items():
        split = replace(unchecked, max_megapixels=max_megapixels)
        examine = partial(_examine, split, partial(_report, progress, done, total), decode=on_error == "skip")
        found = distributed.from_main(examine)  # others are told: one look at a file is enough
        broken, resized = ([_Finding(*finding) for finding in findings] for findings in found)
        _warn_of_sizes(split, resized)
        try:
            splits[name] = _without_broken(split, broken, on_error)
        except UserError as error:
            faults.append(str(error))
        done += len(split)
    if faults:
        raise UserError("\n".join(faults))
    return dataset._replace(splits=splits)


def _report(progress: Progress | None, before: int, total: int, checked: int) -> None:
    if progress is not None:
        progress(before + checked, total)


def _warn_of_shared(dataset: Dataset) -> None:
    """A score on pictures that were learnt from means nothing."""
    names = list(dataset.splits)
    files = [{os.path.realpath(split.path(i)) for i in range(len(split))} for split in dataset.splits.values()]
    for (one, of_one), (other, of_other) in combinations(zip(names, files, strict=True), 2):
        shared = of_one & of_other
        if shared:
            message = "%d PICTURES ARE IN %s AND IN %s, so the score says little of new ones; such as %s"
            log.warning(message, len(shared), one.upper(), other.upper(), min(shared))


def _examine(split: Split, report: Callable[[int], None], decode: bool) -> tuple[list[_Finding], list[_Finding]]:
    """The unreadable pictures and those of another size than annotated."""
    broken, resized = [], []
    with ThreadPoolExecutor(_THREADS) as pool:
        size_or_error = partial(_size_or_error, max_megapixels=split.max_megapixels, decode=decode)
        for index, result in enumerate(pool.map(size_or_error, map(split.path, range(len(split))))):
            height, width = (int(side) for side in split.sizes_px[index])
            if isinstance(result, UserError):
                broken.append(_Finding(index, str(result)))
            elif result != (height, width):
                sizes = f"annotated as {width}x{height}, but the picture is {result[1]}x{result[0]}"
                resized.append(_Finding(index, f"{split.path(index)}: {sizes}"))
            report(index + 1)
    return broken, resized


def _size_or_error(path: os.PathLike, max_megapixels: float, decode: bool) -> tuple[int, int] | UserError:
    try:
        return check_image(path, max_megapixels, decode)
    except UserError as error:
        return error


def _warn_of_sizes(split: Split, resized: list[_Finding]) -> None:
    if resized:
        log.warning(
            "%s: %d pictures, upright by EXIF, are not of the annotated size; their boxes are scaled to them:\n%s",
            split.name,
            len(resized),
            _lines(resized),
        )


def _without_broken(split: Split, broken: list[_Finding], on_error: str) -> Split:
    if not broken:
        return split
    account = f"{split.name}: {len(broken)} of {len(split)} pictures cannot be read"
    if on_error == "error":
        remedy = "mend or remove them, or leave them out with data.on_error=skip"
        raise UserError(f"{account}; {remedy}:\n{_lines(broken)}")
    if len(broken) == len(split):
        raise UserError(f"{account}, so that none is left:\n{_lines(broken)}")
    log.warning("%s and are left out (data.on_error=skip):\n%s", account, _lines(broken))
    return split.without([finding.picture for finding in broken], "unreadable_pictures")


def _lines(findings: list[_Finding]) -> str:
    return "  " + listed((finding.message for finding in findings), separator="\n  ")
