"""The order of an epoch's pictures, the scale of a step and the random numbers of a picture, all made from the seed.

Nothing here or in the loader reads a global random state, so a batch does not depend on the number of workers or on
what ran before, and a resumed run meets the same batches.
"""

import logging
from collections.abc import Sequence

import numpy as np

from rfdetr_train.config import DataConfig
from rfdetr_train.data.sample import Split
from rfdetr_train.errors import UserError, listed

log = logging.getLogger(__name__)

_ORDER, _SAMPLE, _SCALE, _REPEAT = range(4)  # one stream of random numbers per kind of choice


def plan_epoch(
    num_images: int,
    batch_size: int,
    accumulation_steps: int,
    seed: int,
    epoch: int,
    draws_per_picture: np.ndarray | None = None,
) -> list[list[list[int]]]:
    """The draws of an epoch: steps -> micro-batches -> draws, by default every picture exactly once.

    A draw is the index of its picture, plus num_images for every time that the epoch has it already, so that each has
    random numbers of its own. Each step has accumulation_steps micro-batches of batch_size draws; the last step may
    have fewer and the last micro-batch be smaller, so that no draw is left out.

    draws_per_picture, float64 (num_images,): how often each picture is drawn in an epoch, in the mean over all epochs;
    every epoch has `draws_of_epoch` draws.

    Raises: UserError for no pictures.
    """
    if num_images < 1:
        raise UserError("the train split has no pictures; there is nothing to learn from")
    draws = np.arange(num_images) if draws_per_picture is None else _draws(draws_per_picture, seed, epoch)
    order = draws[_rng(seed, _ORDER, epoch).permutation(len(draws))].tolist()
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return [batches[start : start + accumulation_steps] for start in range(0, len(batches), accumulation_steps)]


def draws_of_epoch(num_images: int, draws_per_picture: np.ndarray | None = None) -> int:
    """How many draws an epoch has, the same for all: what `plan_epoch` draws in the mean, its fraction dropped."""
    if draws_per_picture is None:
        return num_images
    return int(draws_per_picture.sum() + 1e-6)  # a sum of fractions may fall short of a whole number


def _draws(draws_per_picture: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Each picture as often as the whole part of its number says; of the fractions a systematic sample.

    That is: the fractions lie one after the other on a line, in random order, and each whole number, moved by a common
    random offset, draws the picture on whose piece it falls. So the probability of a picture is its fraction, and the
    size of the sample is the same in every epoch.
    """
    rng = _rng(seed, _REPEAT, epoch)
    counts = draws_per_picture.astype(np.int64)
    fractions = draws_per_picture - counts
    num_extra = draws_of_epoch(len(counts), draws_per_picture) - int(counts.sum())
    order = rng.permutation(len(counts))
    ends = np.cumsum(fractions[order]) * (num_extra / (fractions.sum() or 1.0))
    ends[-1] = np.inf  # whatever the rounding
    hits = np.searchsorted(ends, rng.random() + np.arange(num_extra), side="right")
    counts[order[hits]] += 1
    copies = [np.flatnonzero(counts > copy) + copy * len(counts) for copy in range(counts.max())]
    return np.concatenate(copies)


def count_steps(num_draws: int, batch_size: int, accumulation_steps: int) -> int:
    """Steps of an epoch: the length of its plan."""
    num_batches = -(-num_draws // batch_size)
    return -(-num_batches // accumulation_steps)


def scale_of_step(seed: int, step: int, scales: Sequence[int]) -> int:
    """The side in pixels that all micro-batches of a step (counted from 0 over the whole run) are resized to."""
    return scales[int(_rng(seed, _SCALE, step).integers(len(scales)))]


def sample_rng(seed: int, epoch: int, draw: int) -> np.random.Generator:
    """The random numbers of a draw in `epoch`."""
    return _rng(seed, _SAMPLE, epoch, draw)


def _rng(seed: int, *stream: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=stream))


def draws_per_picture(split: Split, config: DataConfig) -> np.ndarray | None:
    """The mean number of draws of each picture in an epoch, float64 (N,); None: each once.

    Repeat factors of LVIS (arXiv 1908.03195): with f(c) the share of the pictures that hold class c, and t the
    threshold, r(c) = max(1, sqrt(t / f(c))); a picture is drawn as often as the rarest of its classes asks, max r(c). A
    picture without boxes (crowd regions are none) is drawn `data.background` times.
    """
    if config.repeat_threshold is None and config.background == 1.0:
        return None
    classes = len(split.label_map.names)
    owners = np.repeat(np.arange(len(split)), np.diff(split.offsets))
    pictures, labels = np.divmod(np.unique((owners * classes + split.labels)[~split.crowd]), classes)
    shares = np.bincount(labels, minlength=classes) / len(split)
    factors = np.ones(classes)
    if config.repeat_threshold is not None:
        present = shares > 0
        factors[present] = np.sqrt(config.repeat_threshold / shares[present]).clip(min=1.0)
    draws = np.full(len(split), config.background)
    np.maximum.at(draws, pictures, factors[labels])
    repeated = [f"{split.label_map.names[c]} x{factors[c]:.2f}" for c in np.argsort(-factors) if factors[c] > 1]
    message = "an epoch draws %.0f pictures out of %d; with classes repeated: %s"
    log.info(message, draws.sum(), len(split), listed(repeated) or "none")
    return draws
