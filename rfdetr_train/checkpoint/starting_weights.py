"""Where training starts from: the published weights, a file, or nothing."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from rfdetr_train.adapters import merge_adapters
from rfdetr_train.checkpoint import files, published
from rfdetr_train.checkpoint.class_heads import LogitNames
from rfdetr_train.checkpoint.download import fetch_address
from rfdetr_train.checkpoint.reference_run import read_checkpoint
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

RANDOM_WARNING = (
    "TRAINING STARTS FROM RANDOM WEIGHTS: %s. RF-DETR is meant to be fine-tuned; from random weights a real data set "
    "wants hundreds of epochs and many pictures, and the AP of a short run says little."
)


class StartingWeights(NamedTuple):
    """Weights under our names."""

    state: dict[str, Tensor]
    class_names: LogitNames | None
    """What each logit stands for; None where the file does not say it."""
    source: str
    """What was used, for the log and summary.json."""


def find_starting_weights(
    weights: str, variant: str, folder: Path, on_bytes: Callable[[int, int | None], None] = lambda done, total: None
) -> StartingWeights | None:
    """The weights that `weights=auto|coco|none|PATH|URL` means for a model variant; None is random, said loudly.

    `folder` is the cache of downloaded files. Raises `UserError` for a file that cannot be used, an address that gives
    none, and where `coco` insists on published weights that are not to be had.
    """
    if weights == "none":
        log.warning(RANDOM_WARNING, "weights=none")
        return None
    if "://" in weights:
        return _from_address(weights, folder.expanduser(), on_bytes)
    if weights not in ("auto", "coco"):
        return read_weights(files.resolve(weights, prefer=("best", "last")))
    try:
        return read_weights(published.fetch(variant, folder.expanduser(), on_bytes))
    except published.Unavailable as error:
        if weights == "coco":
            raise UserError(f"weights=coco: {error}") from error
        log.warning(RANDOM_WARNING, error)
        return None


def _from_address(address: str, folder: Path, on_bytes: Callable[[int, int | None], None]) -> StartingWeights:
    try:
        path = fetch_address(address, folder, on_bytes)
    except published.Unavailable as error:
        raise UserError(f"weights: {error}") from error
    try:
        return read_weights(path)
    except UserError as error:
        raise UserError(
            f"{error}; it came from {address}: correct that, or remove the file to fetch it anew"
        ) from error


def read_weights(path: Path) -> StartingWeights:
    """Weights of one of our checkpoints or of a file of the reference package: its `best_kind`."""
    saved = read_checkpoint(path)
    kind = best_kind(saved)
    alpha = (saved.get("model_config") or {}).get("lora_alpha")
    return StartingWeights(
        state=merge_adapters(saved["model"] if kind == "raw" else saved["ema"]["model"], alpha),
        class_names=saved["class_names"],
        source=f"{path} ({'reference package, ' if 'recipe' in saved else ''}{kind} weights)",
    )


def best_kind(saved: dict[str, Any]) -> str:
    """Which weights of a checkpoint to use, `raw` or `ema`: those that scored best.

    Where nothing has been scored it is the average, if anything has entered it. A file that holds no average, such as
    one of a run that went on without, has only raw ones.
    """
    if not saved["ema"] or not saved["ema"]["num_updates"]:
        return "raw"
    best = saved["loop"]["best"]
    return best["weights"] if best else "ema"
