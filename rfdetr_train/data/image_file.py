"""One picture file: its size, whether it is whole, its pixels.

Pillow decodes them all. torchvision's decoders are a quarter faster on JPEG, but deprecated since 0.29.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps

from rfdetr_train.errors import UserError

MAX_MEGAPIXELS = 150
"""Larger pictures are refused before they are decoded: a file of 24 KB can ask for gigabytes of memory."""
Image.MAX_IMAGE_PIXELS = None  # the limit above replaces Pillow's, which warns and raises at sizes of its own

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # of Pillow's others, some start programs to be read
_QUARTER_TURNS = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xae\x42\x60\x82"}
_TAIL_BYTES = 4096
_PADDING = b"\x00\r\n"  # what cameras and transfers leave behind the end


def read_image(path: str | os.PathLike) -> torch.Tensor:
    """Decode a picture, upright by its EXIF orientation.

    Returns: uint8 (3, height, width), RGB, channels last in memory (it resizes faster so). Alpha is ignored, 16-bit
    grey keeps its upper byte.
    Raises: UserError with the path for what is no complete picture, or has more than MAX_MEGAPIXELS.
    """
    with _opened(path) as image:
        upright = ImageOps.exif_transpose(image)
        return torch.from_numpy(np.array(_rgb(upright))).permute(2, 0, 1)


def check_image(path: str | os.PathLike) -> tuple[int, int]:
    """Check that a picture is there and whole, without decoding it where its last bytes already tell.

    Returns: (height, width) in pixels, upright by its EXIF orientation.
    Raises: UserError as `read_image`.
    """
    with _opened(path) as image:
        width, height = image.size
        turned = image.getexif().get(ExifTags.Base.Orientation) in _QUARTER_TURNS
        if not _ends_properly(path, image.format):
            image.load()  # slower, but sure: Image.verify() passes half a JPEG
    return (width, height) if turned else (height, width)


@contextmanager
def _opened(path: str | os.PathLike) -> Iterator[Image.Image]:
    """The opened picture; whatever goes wrong inside becomes a UserError that names the file."""
    try:
        with Image.open(path, formats=_FORMATS) as image:
            _check_megapixels(image)
            yield image
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:  # broken files make Pillow raise nearly anything
        raise UserError(f"{path}: {_reason(error)}") from error


def _check_megapixels(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_MEGAPIXELS * 1_000_000:
        raise UserError(f"{width}x{height} pixels are more than {MAX_MEGAPIXELS} megapixels; scale the picture down")


def _reason(error: Exception) -> str:
    known: dict[type, str] = {FileNotFoundError: "does not exist", IsADirectoryError: "is a folder, not a picture"}
    return known.get(type(error), f"cannot be read as a picture ({type(error).__name__}: {error})")


def _ends_properly(path: str | os.PathLike, image_format: str | None) -> bool:
    ending = _ENDINGS.get(image_format or "")
    if ending is None:
        return False
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
        return file.read().rstrip(_PADDING).endswith(ending)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        return _upper_byte(image).convert("RGB")  # convert("RGB") alone would turn all above 255 white
    if image.mode == "F":
        raise UserError("its pixels are floating-point numbers; save it with 8 or 16 bits a channel")
    if "transparency" in image.info:
        image = image.convert("RGBA")  # else Pillow warns of palettes with transparency
    return image.convert("RGB")


def _upper_byte(image: Image.Image) -> Image.Image:
    values: np.ndarray[Any, Any] = np.asarray(image).astype(np.int64)
    return Image.fromarray((values.clip(0, 65535) >> 8).astype(np.uint8))
