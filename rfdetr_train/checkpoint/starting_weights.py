"""Where training starts from: the published weights, a file, or nothing."""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from rfdetr_train.checkpoint import files, published
from rfdetr_train.checkpoint.fit import QueryLayout
from rfdetr_train.checkpoint.reference_weights import from_reference
from rfdetr_train.errors import UserError

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
    source: str
    """What was used, for the log and summary.json."""


def find_starting_weights(
    weights: str, variant: str, folder: Path, on_bytes: Callable[[int, int | None], None] = lambda done, total: None
) -> StartingWeights | None:
    """The weights that `weights=auto|coco|none|PATH` means for a model variant; None is random, which is said loudly.

    `folder` is the cache of published files. Raises `UserError` for a file that cannot be used, and where `coco`
    insists on published weights that are not to be had.
    """
    if weights == "none":
        log.warning(RANDOM_WARNING, "weights=none")
        return None
    if weights not in ("auto", "coco"):
        return read_weights(files.resolve(weights, prefer=("best", "last")))
    try:
        return read_weights(published.fetch(variant, folder.expanduser(), on_bytes))
    except published.Unavailable as error:
        if weights == "coco":
            raise UserError(f"weights=coco: {error}") from error
        log.warning(RANDOM_WARNING, error)
        return None


def read_weights(path: Path) -> StartingWeights:
    """Weights of one of our checkpoints (the average, if it has one) or of a file of the reference package."""
    content = files.load_untrusted(path, extra_types=(argparse.Namespace,))
    if "loop" in content and "model_config" in content:
        return _from_ours(content, path)
    if isinstance(content.get("model"), dict):
        return _from_reference_file(content, path)
    raise UserError(f"{path}: neither a checkpoint of rfdetr_train nor one of the reference package")


def _from_ours(content: dict[str, Any], path: Path) -> StartingWeights:
    average = content["ema"]
    state, kind = (average["model"], "average") if average and average["num_updates"] else (content["model"], "raw")
    config = content["model_config"]
    return StartingWeights(state, QueryLayout(config["num_queries"], config["group_detr"]), f"{path} ({kind} weights)")


def _from_reference_file(content: dict[str, Any], path: Path) -> StartingWeights:
    arguments = content.get("args")
    values = vars(arguments) if isinstance(arguments, argparse.Namespace) else (arguments or {})
    queries, groups = values.get("num_queries"), values.get("group_detr")
    layout = QueryLayout(queries, groups) if isinstance(queries, int) and isinstance(groups, int) else None
    return StartingWeights(from_reference(content["model"]), layout, f"{path} (reference package)")
