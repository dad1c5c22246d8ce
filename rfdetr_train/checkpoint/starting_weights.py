"""Where training starts from: the published weights, a file, or nothing."""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from rfdetr_train.adapters import merge_adapters
from rfdetr_train.checkpoint import files, published
from rfdetr_train.checkpoint.download import fetch_address
from rfdetr_train.checkpoint.fit import QueryLayout
from rfdetr_train.checkpoint.reference_weights import from_reference
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap

log = logging.getLogger(__name__)

RANDOM_WARNING = (
    "TRAINING STARTS FROM RANDOM WEIGHTS: %s. RF-DETR is meant to be fine-tuned; from random weights a real data set "
    "wants hundreds of epochs and many pictures, and the AP of a short run says little."
)


class StartingWeights(NamedTuple):
    """Weights under our names."""

    state: dict[str, Tensor]
    layout: QueryLayout | None
    """Queries and groups of the model that the weights belong to, where the file says so."""
    class_names: tuple[str, ...] | None
    """The names of the classes in the order of their logits; None where the file does not say them."""
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
    """Weights of one of our checkpoints (its `best_kind`) or of a file of the reference package."""
    content = files.load_untrusted(path, extra_types=(argparse.Namespace,))
    if "loop" in content and "model_config" in content:
        return _from_ours(content, path)
    if isinstance(content.get("model"), dict):
        return _from_reference_file(content, path)
    raise UserError(f"{path}: neither a checkpoint of rfdetr_train nor one of the reference package")


def best_kind(saved: dict[str, Any]) -> str:
    """Which weights of one of our checkpoints to use, `raw` or `ema`: those that scored best.

    Where nothing has been scored it is the average, if anything has entered it. A file that holds no average, such as
    one of a run that went on without, has only raw ones.
    """
    if not saved["ema"] or not saved["ema"]["num_updates"]:
        return "raw"
    best = saved["loop"]["best"]
    return best["weights"] if best else "ema"


def _from_ours(content: dict[str, Any], path: Path) -> StartingWeights:
    kind = best_kind(content)
    config = content["model_config"]
    return StartingWeights(
        state=merge_adapters(content["model"] if kind == "raw" else content["ema"]["model"], config.get("lora_alpha")),
        layout=QueryLayout(config["num_queries"], config["group_detr"]),
        class_names=LabelMap.from_plain(content["label_map"]).names,
        source=f"{path} ({kind} weights)",
    )


def _from_reference_file(content: dict[str, Any], path: Path) -> StartingWeights:
    arguments = content.get("args")
    values = vars(arguments) if isinstance(arguments, argparse.Namespace) else (arguments or {})
    queries, groups = values.get("num_queries"), values.get("group_detr")
    layout = QueryLayout(queries, groups) if isinstance(queries, int) and isinstance(groups, int) else None
    return StartingWeights(
        state=_translated(content["model"], path),
        layout=layout,
        class_names=_class_names(values.get("class_names")),
        source=f"{path} (reference package)",
    )


def _translated(model: dict[str, Any], path: Path) -> dict[str, Tensor]:
    try:
        return from_reference(model)
    except UserError as error:
        raise UserError(f"{path}: these are not the weights of an RF-DETR detector: {error}") from error


def _class_names(value: Any) -> tuple[str, ...] | None:
    is_list_of_names = isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)
    return tuple(value) if is_list_of_names else None
