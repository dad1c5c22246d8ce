"""What the numbers of a run depend on besides its config and its data."""

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy
import PIL
import timm
import torch
import torchvision
from PIL import features

import rfdetr_train


def versions() -> dict[str, str]:
    """Releases by package, the checkout, and the processor's kind."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "rfdetr_train": rfdetr_train.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "timm": timm.__version__,
        "numpy": numpy.__version__,
        "jpeg_decoder": _jpeg_decoder(),
        "commit": _commit(),
        "processor": gpu or torch.backends.cpu.get_cpu_capability(),
    }


@cache
def _commit() -> str:
    """Of the checkout that runs, with `-dirty` where files differ from it; none for an installed package."""
    checkout = Path(rfdetr_train.__file__).parent.parent
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        run = subprocess.run(command, capture_output=True, text=True) if (checkout / ".git").exists() else None
    except OSError:  # no git
        return "unknown"
    return run.stdout.strip() if run else "none"


def _jpeg_decoder() -> str:
    """What `data/image_file.py` prefers for JPEG files, and the library inside."""
    try:
        return f"simplejpeg {metadata.version('simplejpeg')}"
    except metadata.PackageNotFoundError:
        return f"pillow {PIL.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}"
