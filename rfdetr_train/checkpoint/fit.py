"""Making the weights of one model fit another: other classes, another resolution, fewer queries or groups."""

import logging
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

LEAST_SHARE = 0.5
"""A checkpoint of which less than this share of the numbers fits is refused: it is another model's."""


class FitReport(NamedTuple):
    """What became of each tensor of the model."""

    taken: list[str]
    resized: list[str]
    fresh: list[str]
    """Tensors that keep their initial values: another number of classes, or not in the file."""
    unused: list[str]
    """Tensors of the file that the model does not have."""


class QueryLayout(NamedTuple):
    """How learned queries lie in a table: group g occupies rows g * queries to (g + 1) * queries - 1."""

    queries: int
    groups: int


def load_fitting(
    model: nn.Module, saved: dict[str, Tensor], saved_layout: QueryLayout | None, layout: QueryLayout, source: str
) -> FitReport:
    """Load what fits of `saved` into `model`, adapting what can be adapted, and log what was not taken as it was.

    Refused with a `UserError` when less than half of the model's numbers find a value in the file.
    """
    own = model.state_dict()
    report = FitReport([], [], [], sorted(set(saved) - set(own)))
    fitted = {}
    for name, target in own.items():
        value = saved.get(name)
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
    side, wanted = (round((t.shape[1] - 1) ** 0.5) for t in (value, target))
    if value.shape[2] != target.shape[2] or side * side + 1 != value.shape[1] or wanted * wanted + 1 != target.shape[1]:
        return None
    grid = value[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2).float()
    grid = F.interpolate(grid, (wanted, wanted), mode="bicubic", align_corners=False, antialias=True)
    return torch.cat([value[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2).to(value.dtype)], dim=1)


def _log_report(report: FitReport, source: str) -> None:
    log.info("%s: %d tensors taken as they are", source, len(report.taken))
    for word, names in (("resized", report.resized), ("start afresh", report.fresh), ("not used", report.unused)):
        if names:
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            log.warning("%s: %d tensors %s: %s", source, len(names), word, shown)
