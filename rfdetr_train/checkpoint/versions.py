"""What the numbers of a run depend on besides its config."""

import platform
from importlib import metadata

import numpy
import PIL
import timm
import torch
import torchvision
from PIL import features

import rfdetr_train


def versions() -> dict[str, str]:
    """Releases by package."""
    return {
        "rfdetr_train": rfdetr_train.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "timm": timm.__version__,
        "numpy": numpy.__version__,
        "jpeg_decoder": _jpeg_decoder(),
    }


def _jpeg_decoder() -> str:
    """What `data/image_file.py` prefers for JPEG files, and the library inside."""
    try:
        return f"simplejpeg {metadata.version('simplejpeg')}"
    except metadata.PackageNotFoundError:
        return f"pillow {PIL.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}"
