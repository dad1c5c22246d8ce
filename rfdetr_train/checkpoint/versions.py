"""What the numbers of a run depend on besides its config."""

import platform

import numpy
import timm
import torch
import torchvision

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
    }
