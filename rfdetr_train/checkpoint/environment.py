"""What the numbers of a run depend on besides its config and its data: versions, and the state of random generators."""

import logging
import platform
import random
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import PIL
import timm
import torch
import torchvision
from PIL import features

import rfdetr_train

log = logging.getLogger(__name__)


def versions() -> dict[str, str]:
    """Releases by package, the checkout, and the processor's kind."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "rfdetr_train": rfdetr_train.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "timm": timm.__version__,
        "numpy": np.__version__,
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


def random_state() -> dict[str, Any]:
    """Python's, numpy's, torch's and CUDA's, as plain values and tensors."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(tuple, np.random.get_state(legacy=True))
    return {
        "python": [version, list(words), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """The inverse of `random_state`; CUDA's is restored where the number of devices is the same."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    elif state["cuda"]:
        message = "the checkpoint has the random state of %d GPUs, here are %d: it is not restored"
        log.warning(message, len(state["cuda"]), torch.cuda.device_count())
