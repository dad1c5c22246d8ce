"""Every picture looked at once: is it whole, how large, and what marks it out among others."""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from rfdetr_train.data.image_file import check_image, read_image
from rfdetr_train.data.reader import Progress, in_threads
from rfdetr_train.errors import UserError

_DECODED_AT_LEAST_PX = 64
THUMBNAIL_PX = 16


class Measured(NamedTuple):
    """A readable picture."""

    size_px: tuple[int, int]
    """(height, width), upright by EXIF."""
    digest: bytes
    """Of the file."""
    hash: int
    """64 bits: is a pixel brighter than its right neighbour, in 8 rows of 9 grey pixels? Copies that were scaled or
    compressed anew differ in few of them."""
    thumbnail: np.ndarray
    """uint8 (THUMBNAIL_PX, THUMBNAIL_PX), grey."""


def measure_pictures(
    paths: Sequence[Path], max_megapixels: float, progress: Progress | None = None
) -> list[Measured | UserError]:
    """Measure pictures in parallel; for one that cannot be read the reason."""
    return in_threads(partial(measure, max_megapixels=max_megapixels), paths, progress)


def measure(path: Path, max_megapixels: float) -> Measured | UserError:
    """Measure a picture, or say why it cannot be read."""
    try:
        size_px = check_image(path, max_megapixels)
        pixels = read_image(path, max_megapixels, at_least_px=_DECODED_AT_LEAST_PX)
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
    except UserError as error:
        return error
    except OSError as error:
        return UserError(f"{path}: cannot be read: {error.strerror}")
    grey = Image.fromarray(pixels.permute(1, 2, 0).numpy()).convert("L")
    rows = np.asarray(grey.resize((9, 8), Image.Resampling.BOX))
    bits = np.packbits(rows[:, :-1] > rows[:, 1:])
    thumbnail = np.asarray(grey.resize((THUMBNAIL_PX, THUMBNAIL_PX), Image.Resampling.BOX))
    return Measured(size_px, digest, int.from_bytes(bits.tobytes(), "big"), thumbnail)
