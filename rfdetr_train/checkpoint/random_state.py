"""The state of every random generator of a process."""

import logging
import random
from typing import Any, cast

import numpy as np
import torch

log = logging.getLogger(__name__)


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
