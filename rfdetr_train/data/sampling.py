"""How often an epoch draws each picture of the train split: rare classes more often, pictures without boxes less."""

import logging

import numpy as np

from rfdetr_train.config import DataConfig
from rfdetr_train.data.listing import listed
from rfdetr_train.data.sample import Split

log = logging.getLogger(__name__)


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
    _tell(split, draws, factors)
    return draws


def _tell(split: Split, draws: np.ndarray, factors: np.ndarray) -> None:
    repeated = [f"{split.label_map.names[c]} x{factors[c]:.2f}" for c in np.argsort(-factors) if factors[c] > 1]
    message = "an epoch draws %.0f pictures out of %d; with classes repeated: %s"
    log.info(message, draws.sum(), len(split), listed(repeated) or "none")
