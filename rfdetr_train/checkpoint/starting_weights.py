"""Where training starts from: the published weights, a file, or nothing."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from rfdetr_train.adapters import merge_adapters
from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.download import OnBytes, Unavailable, download, fetch_address
from rfdetr_train.checkpoint.fit import LogitNames
from rfdetr_train.checkpoint.reference_run import read_checkpoint
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

RANDOM_WARNING = (
    "TRAINING STARTS FROM RANDOM WEIGHTS: %s. RF-DETR is meant to be fine-tuned; from random weights a real data set "
    "wants hundreds of epochs and many pictures, and the AP of a short run says little."
)

HOST = "https://storage.googleapis.com/rfdetr/"
PUBLISHED = {
    "nano": ("rf-detr-nano.pth", "nano_coco/checkpoint_best_regular.pth", "fb6504cce7fbdc783f7a46991f07639f"),
    "small": ("rf-detr-small.pth", "small_coco/checkpoint_best_regular.pth", "fb37061c1af7bace359c91b723a8d5c1"),
    "medium": ("rf-detr-medium.pth", "medium_coco/checkpoint_best_regular.pth", "7223f764a87b863f02eb8d52bf0ce2ee"),
    "large": ("rf-detr-large-2026.pth", "rf-detr-large-2026.pth", "5cb72153541cbcb9aa6efa26222acc75"),
    "base": ("rf-detr-base.pth", "rf-detr-base-coco.pth", "b4d3ce46099eaed50626ede388caf979"),
}
"""Model -> its file's name, its address under the host, its MD5."""


class StartingWeights(NamedTuple):
    """Weights under our names."""

    state: dict[str, Tensor]
    class_names: LogitNames | None
    """What each logit stands for; None where the file does not say it."""
    source: str
    """What was used, for the log and summary.json."""


def find_starting_weights(
    weights: str, variant: str, folder: Path, on_bytes: OnBytes = lambda done, total: None
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
        return read_weights(fetch_published(variant, folder.expanduser(), on_bytes))
    except Unavailable as error:
        if weights == "coco":
            raise UserError(f"weights=coco: {error}") from error
        log.warning(RANDOM_WARNING, error)
        return None


def fetch_published(variant: str, folder: Path, on_bytes: OnBytes = lambda done, total: None, host: str = HOST) -> Path:
    """The published file of `variant` in `folder`, downloaded from `host` if it is not there, its MD5 checked.

    `on_bytes(done, total)` is told of the progress. Raises as `download` does, and `Unavailable` for a variant of which
    nothing is published.
    """
    if variant not in PUBLISHED:
        raise Unavailable(f"there are no published weights for model={variant}")
    file_name, place, md5 = PUBLISHED[variant]
    download(host + place, folder / file_name, f"md5={md5}", on_bytes)
    return folder / file_name


def _from_address(address: str, folder: Path, on_bytes: OnBytes) -> StartingWeights:
    try:
        path = fetch_address(address, folder, on_bytes)
    except Unavailable as error:
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
    with files.reading(path):
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
