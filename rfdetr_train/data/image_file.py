"""One picture file: its size, whether it is whole, its pixels; and many of them at once.

Pillow reads them all. Where simplejpeg is installed (the extra `fast`) it decodes JPEG files of one and three channels,
in two thirds of the time, to the same bits: both hold libjpeg-turbo. torchvision's decoders are deprecated since 0.29.
"""

import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import ExifTags, Image, ImageFile

from rfdetr_train.errors import UserError

try:
    import simplejpeg
except ModuleNotFoundError:
    simplejpeg = None

MAX_MEGAPIXELS = 150.0
"""data.max_megapixels where nothing else is said: a file of 24 KB can ask for gigabytes of memory."""
Image.MAX_IMAGE_PIXELS = None  # our limit replaces Pillow's, which warns and raises at sizes of its own

Given = TypeVar("Given")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""Called with (how much is done so far, how much there is in all)."""
Pixels = np.ndarray[Any, Any]
"""uint8 (height, width, 3), RGB."""

_THREADS = min(16, 4 * (os.cpu_count() or 1))  # the work is mostly waiting for files
_AT_ONCE = 16

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # of Pillow's others, some start programs to be read
_ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xae\x42\x60\x82"}
_TAIL_BYTES = 4096
_PADDING = b"\x00\r\n"  # what cameras and transfers leave behind the end
_REDUCTIONS = (8, 4, 2)  # that a JPEG decodes at for less than the price of the whole
_SPARE = 2  # a reduced picture keeps this many times the pixels that are needed on each side

_UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {  # by EXIF orientation
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: np.rot90,
}
_QUARTER_TURNS = (5, 6, 7, 8)  # those that swap width and height


def in_threads(
    work: Callable[[Given], Result], things: Sequence[Given], progress: Progress | None = None
) -> list[Result | UserError]:
    """`work` on each, which is mostly waiting for files, or decoding; a refusal stands in the place of its result."""
    results: list[Result | UserError] = []
    groups = [things[start : start + _AT_ONCE] for start in range(0, len(things), _AT_ONCE)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for group in pool.map(partial(attempted, work), groups):
            results += group
            if progress is not None:
                progress(len(results), len(things))
    return results


def attempted(work: Callable[[Given], Result], things: Iterable[Given]) -> list[Result | UserError]:
    """`work` on each; a refusal stands in the place of its result."""

    def attempt(thing: Given) -> Result | UserError:
        try:
            return work(thing)
        except UserError as error:
            return error

    return list(map(attempt, things))


def read_image(
    path: str | os.PathLike, max_megapixels: float = MAX_MEGAPIXELS, at_least_px: int | None = None
) -> torch.Tensor:
    """Decode a picture (of several frames the first), upright by its EXIF orientation.

    A JPEG is decoded at a half, a quarter or an eighth of its size if both sides keep twice `at_least_px`. At 3000x4000
    px for views of 384 px this moves a view's bytes by 0.3 of 255 in the mean, what its rounding does.

    Alpha is ignored; 16-bit grey keeps its upper byte; floating-point values are taken from 0 to 1.

    Returns: uint8 (3, height, width), RGB, channels last in memory (it resizes faster so).
    Raises: UserError with the path for what is no complete picture, or has more than `max_megapixels`.
    """
    with _opened(path, max_megapixels) as image:
        factor = reduction(image.size, at_least_px)
        image.draft(image.mode, (image.width // factor, image.height // factor))  # does nothing to other formats
        pixels = _jpeg_pixels(image)
        if pixels is None:
            pixels = np.array(_rgb(image))
        upright = _UPRIGHT.get(_orientation(image), np.asarray)(pixels)
        return torch.from_numpy(np.ascontiguousarray(upright)).permute(2, 0, 1)


def check_image(
    path: str | os.PathLike, max_megapixels: float = MAX_MEGAPIXELS, decode: bool = False
) -> tuple[int, int]:
    """`image_size` of a picture that is whole; only if `decode` asks for it by decoding where its last bytes tell too.

    Raises: UserError as `read_image`.
    """
    with _opened(path, max_megapixels) as image:
        if decode or not _ends_properly(path, image.format):
            _rgb(image)  # slower, but sure: Image.verify() passes half a JPEG
        return _upright_size(image)


def image_size(path: str | os.PathLike) -> tuple[int, int]:
    """(height, width) in pixels, upright by the EXIF orientation, from the header alone.

    Raises: UserError as `read_image` for what has no such header.
    """
    with _opened(path, math.inf) as image:
        return _upright_size(image)


def _upright_size(image: Image.Image) -> tuple[int, int]:
    return image.size if _orientation(image) in _QUARTER_TURNS else image.size[::-1]


def reduction(size_px: tuple[int, int], at_least_px: int | None) -> int:
    """The factor (8, 4, 2 or 1) by which a JPEG of these sides is reduced where `at_least_px` are needed (None: 1)."""
    if at_least_px is None:
        return 1
    return next((factor for factor in _REDUCTIONS if min(size_px) // factor >= _SPARE * at_least_px), 1)


@contextmanager
def _opened(path: str | os.PathLike, max_megapixels: float) -> Iterator[ImageFile.ImageFile]:
    """The opened picture; whatever goes wrong inside becomes a UserError that names the file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError("is a folder, pipe or device, not a picture")  # opening a pipe might never return
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > max_megapixels * 1_000_000:
                size = f"{image.width}x{image.height} pixels are more than data.max_megapixels={max_megapixels:g}"
                raise UserError(f"{size}; scale it down or raise the limit")
            yield image
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except FileNotFoundError as error:
        raise UserError(f"{path}: does not exist") from error
    except Exception as error:  # broken files make Pillow raise nearly anything
        raise UserError(f"{path}: cannot be read as a picture ({type(error).__name__}: {error})") from error


def _ends_properly(path: str | os.PathLike, image_format: str | None) -> bool:
    ending = _ENDINGS.get(image_format or "")
    if ending is None:
        return False
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
        return file.read().rstrip(_PADDING).endswith(ending)


def _orientation(image: Image.Image) -> int:
    """EXIF's number from 1 to 8; 1 is upright."""
    if image.format == "TIFF":
        return 1  # Pillow turns these itself
    try:
        exif = Image.Image.getexif(image)  # a PNG's own would decode it, to look behind its pixels
        return exif.get(ExifTags.Base.Orientation, 1)
    except Exception:  # broken EXIF data, of a picture that may be whole
        return 1


def _jpeg_pixels(image: ImageFile.ImageFile) -> Pixels | None:
    """What simplejpeg makes of an opened JPEG, at the size that `draft` has chosen; None leaves it to Pillow."""
    if simplejpeg is None or image.format not in ("JPEG", "MPO") or image.mode not in ("RGB", "L"):
        return None
    assert image.fp is not None
    image.fp.seek(0)
    try:
        pixels = simplejpeg.decode_jpeg(image.fp.read(), min_height=image.height, min_width=image.width)
    except ValueError:  # Pillow says what is wrong, or knows better
        return None
    return pixels if pixels.shape[:2] == (image.height, image.width) else None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        image = _upper_byte(image)  # convert("RGB") alone would turn all above 255 white
    if image.mode == "F":
        image = _from_unit(image)
    if "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns of palettes with transparency
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


def _upper_byte(image: Image.Image) -> Image.Image:
    values: Pixels = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise UserError(f"its values run from {values.min()} to {values.max()}; save it with 8 or 16 bits a channel")
    return Image.fromarray((values >> 8).astype(np.uint8))


def _from_unit(image: Image.Image) -> Image.Image:
    values: Pixels = np.asarray(image)
    if not (values.min() >= 0 and values.max() <= 1):  # NaN is neither
        found = f"its floating-point values run from {values.min():g} to {values.max():g}"
        raise UserError(f"{found}; scale them to 0 to 1, or save it with 8 or 16 bits a channel")
    return Image.fromarray((values * 255).round().astype(np.uint8))
