"""Making the weights of one model fit another: other classes, another resolution, fewer queries or groups."""

import logging
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rfdetr_train.errors import UserError
from rfdetr_train.position_table import resize_positions

log = logging.getLogger(__name__)

LEAST_SHARE = 0.5
"""A checkpoint of which less than this share of the numbers fits is refused: it is another model's."""
CLASS_HEAD = re.compile(r"(two_stage\.groups\.\d+\.)?class_embed\..+")
"""The parameters of the class heads: the detector's and one of each group of the two-stage selection."""


class FitReport(NamedTuple):
    """What became of each tensor of the model."""

    taken: list[str]
    resized: list[str]
    fresh: list[str]
    """Tensors that keep the values they have: class heads of other classes, or not in the file."""
    unused: list[str]
    """Tensors of the file that the model does not have."""


class QueryLayout(NamedTuple):
    """How learned queries lie in a table: group g occupies rows g * queries to (g + 1) * queries - 1."""

    queries: int
    groups: int


def classes_agree(saved: Sequence[str] | None, wanted: Sequence[str], source: str) -> bool:
    """Whether the class names of a file are those of this run, in order; what differs is logged.

    `saved` is None for a file that does not name its classes: class heads of unknown classes are of no use.
    """
    if saved is None:
        log.warning("%s: does not say its classes, so the class heads start afresh", source)
        return False
    if list(saved) == list(wanted):
        return True
    log.warning("%s: has other classes, so the class heads start afresh: %s; here %s",
                source, _shown(saved), _shown(wanted))  # fmt: skip
    return False


def load_fitting(
    model: nn.Module,
    saved: dict[str, Tensor],
    saved_layout: QueryLayout | None,
    layout: QueryLayout,
    source: str,
    *,
    same_classes: bool,
) -> FitReport:
    """Load what fits of `saved` into `model`, adapting what can be adapted, and log what was not taken as it was.

    Args:
        model: the detector, or its average.
        saved: a state dict under our names.
        saved_layout: queries and groups of the model it belongs to; None where they are not known.
        layout: those of `model`.
        source: what the log calls the file.
        same_classes: whether the file's class names are those of `model`, in order, as `classes_agree` finds out;
            otherwise the class heads stay as they are in `model`.

    Raises:
        UserError: less than half of the model's numbers find a value in the file.
    """
    own = model.state_dict()
    report = FitReport([], [], [], sorted(set(saved) - set(own)))
    fitted = {}
    for name, target in own.items():
        value = saved.get(name) if same_classes or not CLASS_HEAD.fullmatch(name) else None
        adapted = None if value is None else _adapt(name, value, target, saved_layout, layout)
        if adapted is None:
            report.fresh.append(name)
            continue
        (report.taken if adapted is value else report.resized).append(name)
        fitted[name] = adapted
    share = sum(t.numel() for t in fitted.values()) / max(1, sum(t.numel() for t in own.values()))
    if share < LEAST_SHARE:
        raise UserError(
            f"{source}: only {share:.0%} of the model's numbers fit; is it the checkpoint of another model?"
        )
    model.load_state_dict(fitted, strict=False)
    _log_report(report, source)
    return report


def _adapt(
    name: str, value: Tensor, target: Tensor, saved_layout: QueryLayout | None, layout: QueryLayout
) -> Tensor | None:
    """`value` in the shape of `target`, or None if that makes no sense."""
    if value.shape == target.shape and saved_layout in (None, layout):
        return value
    if name in ("refpoint_embed.weight", "query_feat.weight"):
        return _regroup_queries(value, saved_layout, layout)
    if value.shape == target.shape:
        return value
    if name.endswith("pos_embed"):
        return _resize_positions(value, target)
    return None


def _regroup_queries(value: Tensor, saved: QueryLayout | None, wanted: QueryLayout) -> Tensor | None:
    """Each group keeps its own first queries; more queries or groups than the file has cannot be made up."""
    if saved is None or saved.queries < wanted.queries or saved.groups < wanted.groups:
        return None
    table = value.reshape(saved.groups, saved.queries, -1)
    return table[: wanted.groups, : wanted.queries].reshape(wanted.groups * wanted.queries, -1).contiguous()


def _resize_positions(value: Tensor, target: Tensor) -> Tensor | None:
    """A position table (1, 1 + h * w, width) for another square grid; the class token's part is kept."""
    side, wanted = (math.isqrt(t.shape[1] - 1) for t in (value, target))
    if value.shape[2] != target.shape[2] or side * side + 1 != value.shape[1] or wanted * wanted + 1 != target.shape[1]:
        return None
    patches = resize_positions(value[:, 1:], (wanted, wanted)).flatten(1, 2)
    return torch.cat([value[:, :1], patches.to(value.dtype)], dim=1)


def _log_report(report: FitReport, source: str) -> None:
    log.info("%s: %d tensors taken as they are", source, len(report.taken))
    for word, names in (("resized", report.resized), ("start afresh", report.fresh), ("not used", report.unused)):
        if names:
            log.warning("%s: %d tensors %s: %s", source, len(names), word, _shown(names))


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
