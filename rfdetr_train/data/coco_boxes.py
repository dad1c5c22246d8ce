"""The box around a COCO segmentation, for annotations that give no bbox.

pycocotools has such functions, but reads and writes past its memory where a compressed code is broken.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from rfdetr_train.errors import UserError

_LARGEST_COORDINATE = 1e300  # so that no difference of two overflows


def box_of_segmentation(segmentation: Any, size_px: tuple[int, int] | None) -> list[float]:
    """The box around polygons or a run-length code of a picture of `size_px` (height, width; None: unknown).

    Returns: xywh in pixels, not clipped; of no size where nothing is marked.
    Raises: UserError for what is neither, and for a code of another size.
    """
    try:
        if isinstance(segmentation, dict):
            return _box_of_run_lengths(segmentation, size_px)
        return _box_of_polygons(segmentation)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"the segmentation cannot be read: {error}") from error


def _box_of_polygons(polygons: Iterable) -> list[float]:
    """The exact extent; pycocotools would round it to the pixels of a drawn mask."""
    points = np.concatenate([np.asarray(polygon, dtype=np.float64).reshape(-1, 2) for polygon in polygons])
    if not (np.abs(points) < _LARGEST_COORDINATE).all():
        raise ValueError("a coordinate is not finite")
    low, high = points.min(axis=0), points.max(axis=0)
    return [*low.tolist(), *(high - low).tolist()]


def _box_of_run_lengths(code: dict, size_px: tuple[int, int] | None) -> list[float]:
    """Runs of 0 and 1 by turns, the first of 0, down the columns."""
    height, width = code["size"]
    if (height, width) != (size_px or (height, width)):
        raise ValueError(f"its size {code['size']} is not the picture's {list(size_px or ())} (height, width)")
    counts = code["counts"]
    counts = np.asarray(_decompressed(counts) if isinstance(counts, str) else counts, dtype=np.int64).reshape(-1)
    ends = np.cumsum(counts)
    if counts.min(initial=0) < 0 or counts.sum() != height * width or height < 1:
        raise ValueError("its run lengths do not add up to the picture")
    marked = counts[1::2] > 0
    first, last = (ends - counts)[1::2][marked], ends[1::2][marked] - 1
    if not marked.any():
        return [0.0] * 4
    left, right = first[0] // height, last[-1] // height
    over_columns = (first // height != last // height).any()
    top, bottom = (0, height - 1) if over_columns else ((first % height).min(), (last % height).max())
    return [float(left), float(top), float(right - left + 1), float(bottom - top + 1)]


def _decompressed(text: str) -> list[int]:
    """COCO's text form: five bits a character, a sign; from the fourth on, differences to the last but one."""
    counts: list[int] = []
    value = shift = 0
    for character in text.encode():
        if not 48 <= character < 112:
            raise ValueError(f"{chr(character)!r} is no character of a compressed run-length code")
        bits = character - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:  # more characters follow
            continue
        value -= (bits & 0x10) << (shift - 4)  # the sign bit stands for minus twice its own value
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("its compressed run-length code breaks off")
    return counts
