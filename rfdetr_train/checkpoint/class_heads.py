"""Class heads of one set of classes in a model of another: rows follow the class names."""

import logging
import re
from collections.abc import Mapping, Sequence

from torch import Tensor

log = logging.getLogger(__name__)

CLASS_HEAD = re.compile(r"(two_stage\.groups\.\d+\.)?class_embed\.(weight|bias)")
"""The parameters of the class heads: the detector's and one of each group of the two-stage selection."""

LogitNames = Sequence[str | None]
"""What each logit stands for; None for one that never has a target, as the last one of a model."""


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


def _shown(names: Sequence[str]) -> str:
    return (", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")) or "none"
