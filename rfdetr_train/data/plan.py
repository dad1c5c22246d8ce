"""The order of an epoch's pictures, the scale of a step and the random numbers of a picture, all made from the seed.

Nothing here or in the loader reads a global random state, so a batch does not depend on the number of workers or on
what ran before, and a resumed run meets the same batches.
"""

from collections.abc import Sequence

import numpy as np

from rfdetr_train.errors import UserError

_ORDER, _SAMPLE, _SCALE = range(3)  # one stream of random numbers per kind of choice


def plan_epoch(
    num_images: int, batch_size: int, accumulation_steps: int, seed: int, epoch: int
) -> list[list[list[int]]]:
    """The picture indices of an epoch: steps -> micro-batches -> indices, every picture exactly once.

    Each step has accumulation_steps micro-batches of batch_size pictures; the last step may have fewer and the last
    micro-batch be smaller, so that no picture is left out.

    Raises: UserError for no pictures.
    """
    if num_images < 1:
        raise UserError("the train split has no pictures; there is nothing to learn from")
    order = _rng(seed, _ORDER, epoch).permutation(num_images).tolist()
    batches = [order[start : start + batch_size] for start in range(0, num_images, batch_size)]
    return [batches[start : start + accumulation_steps] for start in range(0, len(batches), accumulation_steps)]


def count_steps(num_images: int, batch_size: int, accumulation_steps: int) -> int:
    """Steps of an epoch: the length of its plan."""
    num_batches = -(-num_images // batch_size)
    return -(-num_batches // accumulation_steps)


def scale_of_step(seed: int, step: int, scales: Sequence[int]) -> int:
    """The side in pixels that all micro-batches of a step (counted from 0 over the whole run) are resized to."""
    return scales[int(_rng(seed, _SCALE, step).integers(len(scales)))]


def sample_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The random numbers of picture `index` in `epoch`."""
    return _rng(seed, _SAMPLE, epoch, index)


def _rng(seed: int, *stream: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))
