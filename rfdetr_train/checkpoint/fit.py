"""Making the weights of one model fit another: other classes, sizes of pictures and patches, queries or groups."""

import logging
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from timm.layers import resample_patch_embed
from torch import Tensor, nn

from rfdetr_train.adapters import under_adapters
from rfdetr_train.errors import UserError
from rfdetr_train.position_table import resize_positions

log = logging.getLogger(__name__)

LEAST_SHARE = 0.5
"""A checkpoint of which less than this share of the numbers fits is refused: it is another model's."""
QUERY_TABLES = ("refpoint_embed.weight", "query_feat.weight")
CLASS_HEAD = re.compile(r"(two_stage\.groups\.\d+\.)?class_embed\.(weight|bias)")
"""The parameters of the class heads: the detector's and one of each group of the two-stage selection."""
NOT_IN_FILE = "not in the file: initial values"
OTHER_SHAPE = "of another shape: initial values"

LogitNames = Sequence[str | None]
"""What each logit stands for; None for one that never has a target, as the last one of a model."""
Fitted = tuple[Tensor | None, str]
"""A tensor in the wanted shape and what was done to it ("": nothing), or None and the reason."""


class FitReport(NamedTuple):
    """What became of each tensor of the model."""

    taken: list[str]
    adapted: dict[str, str]
    """Tensors that had to be changed, with what was done; their optimizer moments do not fit."""
    fresh: dict[str, str]
    """Tensors that keep the values they have, with the reason."""
    unused: list[str]
    """Tensors of the file that the model does not have."""

    def rows(self) -> list[tuple[str, int, str]]:
        """(part, number of tensors, what happened), but for what was taken as it is."""
        unused = dict.fromkeys(self.unused, "only in the file: not used")
        happened = [(_part(name), what) for name, what in {**self.adapted, **self.fresh, **unused}.items()]
        return [(part, count, what) for (part, what), count in Counter(happened).items()]


class QueryLayout(NamedTuple):
    """How learned queries lie in a table: group g occupies rows g * queries to (g + 1) * queries - 1."""

    queries: int
    groups: int

    @classmethod
    def of(cls, state: dict[str, Tensor]) -> "QueryLayout":
        """Of a detector's weights; each group has a selector of its own."""
        groups = {name.split(".")[2] for name in state if name.startswith("two_stage.groups.")}
        rows = len(state[QUERY_TABLES[1]]) if QUERY_TABLES[1] in state else 0
        return cls(rows // max(1, len(groups)), len(groups))


def load_fitting(
    model: nn.Module,
    saved: dict[str, Tensor],
    source: str,
    *,
    class_rows: Sequence[int | None] = (),
    allow_partial: bool = False,
) -> FitReport:
    """Load what fits of `saved` into `model`, adapting what can be adapted.

    Args:
        model: the detector, or its average.
        saved: a state dict under our names; plain weights find their layers where those have adapters.
        source: what the log calls the file.
        class_rows: for each logit of `model` that of the file, as `match_classes` finds out.
        allow_partial: take also what fits of a file of which most does not.

    Raises:
        UserError: less than half of the model's numbers find a value in the file.
    """
    own = model.state_dict()
    saved = under_adapters(saved, own)
    layouts = QueryLayout.of(saved), QueryLayout.of(own)
    report = FitReport([], {}, {}, sorted(set(saved) - set(own)))
    fitted = {}
    for name, target in own.items():
        value, what = _fit(name, saved[name], target, layouts, class_rows) if name in saved else (None, NOT_IN_FILE)
        if value is None:
            report.fresh[name] = what
        else:
            fitted[name] = value
            if what:
                report.adapted[name] = what
    report.taken.extend(name for name in fitted if name not in report.adapted)
    share = sum(t.numel() for t in fitted.values()) / max(1, sum(t.numel() for t in own.values()))
    if share < LEAST_SHARE and not allow_partial:
        name = next(iter(report.fresh))
        there = f"has shape {list(saved[name].shape)} there" if name in saved else "is not there"
        raise UserError(
            f"{source}: only {share:.0%} of the model's numbers fit ({name} {there}, {list(own[name].shape)} here); "
            "is it the checkpoint of another model? weights_allow_partial=true takes what fits"
        )
    _refuse_bad_numbers(fitted, source)
    model.load_state_dict(fitted, strict=False)
    return report


def _refuse_bad_numbers(fitted: dict[str, Tensor], source: str) -> None:
    for name, value in fitted.items():
        if not value.is_floating_point() and "num_batches_tracked" not in name:
            raise UserError(f"{source}: {name} holds {value.dtype}, which is no detector's weights")
        if not value.isfinite().all():
            raise UserError(f"{source}: {name} holds values that are not finite; take an earlier checkpoint")


def _fit(
    name: str,
    value: Tensor,
    target: Tensor,
    layouts: tuple[QueryLayout, QueryLayout],
    class_rows: Sequence[int | None],
) -> Fitted:
    if CLASS_HEAD.fullmatch(name):
        return by_class(value, target, class_rows)
    if name in QUERY_TABLES and value.shape[1:] == target.shape[1:]:
        return _by_group(value, target, *layouts)
    if value.shape == target.shape:
        return value, ""
    resized = None
    if name.endswith("pos_embed"):
        resized = _resize_positions(value, target)
    elif name.endswith("patch_embed.proj.weight"):
        resized = _resize_patches(value, target)
    return resized or (None, OTHER_SHAPE)


def by_class(value: Tensor, target: Tensor, rows: Sequence[int | None]) -> tuple[Tensor | None, str]:
    """Row k of a class head of `target`'s shape from row `rows[k]` of `value`, from `target` where that is None.

    Returns the head and what was done ("" where it is `value` itself), or None and the reason.
    """
    known = [(own, row) for own, row in enumerate(rows) if row is not None]
    if not known:
        return None, "of other classes: initial values"
    if value.shape[1:] != target.shape[1:]:
        return None, "of another width: initial values"
    if list(rows) == list(range(len(value))):
        return value, ""
    head = target.clone()
    for own, row in known:
        head[own] = value[row]
    others = ", initial values in the others" if len(known) < len(rows) else ""
    return head, f"{len(known)} of {len(rows)} rows taken over by class name{others}"


def _by_group(value: Tensor, target: Tensor, saved: QueryLayout, wanted: QueryLayout) -> Fitted:
    """Each group keeps its own first queries; those that the file has not keep their initial values."""
    if saved == wanted:
        return value, ""
    if len(value) != saved.groups * saved.queries:
        return None, OTHER_SHAPE
    table, old = target.clone(), value.reshape(saved.groups, saved.queries, -1)
    groups, queries = min(saved.groups, wanted.groups), min(saved.queries, wanted.queries)
    table.view(wanted.groups, wanted.queries, -1)[:groups, :queries] = old[:groups, :queries]
    what = f"the first {queries} of {saved.queries} queries of the first {groups} of {saved.groups} groups"
    if (groups, queries) != (wanted.groups, wanted.queries):
        what += f"; initial values in the other {len(table) - groups * queries} of {len(table)} rows"
    return table, what


def _resize_positions(value: Tensor, target: Tensor) -> Fitted | None:
    """A position table (1, 1 + h * w, width) for another square grid; the class token's part is kept."""
    side, wanted = (math.isqrt(t.shape[1] - 1) for t in (value, target))
    if value.shape[2] != target.shape[2] or side * side + 1 != value.shape[1] or wanted * wanted + 1 != target.shape[1]:
        return None
    patches = resize_positions(value[:, 1:], (wanted, wanted)).flatten(1, 2)
    what = f"positions resized from {side}x{side} to {wanted}x{wanted}"
    return torch.cat([value[:, :1], patches.to(value.dtype)], dim=1), what


def _resize_patches(value: Tensor, target: Tensor) -> Fitted | None:
    """The patch convolution (width, channels, p, p) for patches of another side and for other input channels."""
    (width, channels, side, _), (wanted_width, wanted_channels, wanted_side, _) = value.shape, target.shape
    if width != wanted_width:
        return None
    done = []
    if channels != wanted_channels:
        value = _other_channels(value, wanted_channels)
        done.append(f"from {channels} input channels to {wanted_channels}")
    if side != wanted_side:
        value = resample_patch_embed(value, [wanted_side, wanted_side])
        done.append(f"from patches of {side} pixels to {wanted_side}")
    return value, "patch convolution: " + ", ".join(done)


def _other_channels(kernel: Tensor, wanted: int) -> Tensor:
    """(E, I, p, p) for `wanted` channels: their sum for one, else repeated in turn and scaled to answer as strongly.

    So a grey picture gets, as one channel or as RGB, the same answer.
    """
    channels = kernel.shape[1]
    if wanted == 1:
        return kernel.sum(dim=1, keepdim=True)
    return kernel[:, [k % channels for k in range(wanted)]] * (channels / wanted)


def _part(name: str) -> str:
    return "class heads" if CLASS_HEAD.fullmatch(name) else name.split(".")[0]


def match_classes(saved: LogitNames | None, wanted: Sequence[str], source: str) -> list[int | None]:
    """For each logit of this run the logit of the file that means the same, None where there is none.

    Names are compared as they are, and where that finds nothing without regard to case. The last logit, which has no
    target, comes from one of the file that has none either. What differs is logged in one line.

    Args:
        saved: the names of the file's logits; None for a file that does not say them, whose heads are of no use.
        wanted: the names of this run's classes.
        source: what the log calls the file.
    """
    names = [*wanted, None]
    if saved is None:
        log.warning("%s: does not say its classes, so the class heads start afresh", source)
        return [None] * len(names)
    if list(saved) == names:
        return list(range(len(names)))
    exact = {name: row for row, name in enumerate(saved)}
    folded = {name.casefold(): row for name, row in exact.items() if name}
    rows = [exact.get(name, folded.get(name.casefold()) if name else None) for name in names]
    taken = [name for name, row in zip(wanted, rows, strict=False) if row is not None]
    new = [name for name, row in zip(wanted, rows, strict=False) if row is None]
    log.warning("%s: has other classes (%s); taken over by name: %s; new: %s",
                source, _shown([name for name in saved if name]), _shown(taken), _shown(new))  # fmt: skip
    return rows if taken else [None] * len(names)


def select_logits(state: Mapping[str, Tensor], logits: Sequence[int]) -> dict[str, Tensor]:
    """Weights whose class heads have only these logits, in this order."""
    chosen = list(logits)
    return {name: value[chosen] if CLASS_HEAD.fullmatch(name) else value for name, value in state.items()}


def _shown(names: Sequence[str]) -> str:
    return (", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")) or "none"
