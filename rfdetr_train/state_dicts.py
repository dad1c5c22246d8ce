"""The state dicts of optimizers and schedulers: parameter groups, and which entries of a scheduler's go by them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

State = dict[str, Any]
"""A state dict, or a part of one such as a parameter group or a parameter's moments."""

PRESENT_RATES = ("_last_lr", "full_lrs")
"""The rates that the groups have reached; they scale with a group's initial rate."""
GROUP_SETTINGS = ("lr_lambdas", "min_lrs")
"""What a torch scheduler was given for each group."""
PER_GROUP = ("base_lrs", *PRESENT_RATES, *GROUP_SETTINGS)
"""Entries of a scheduler's state that hold one value per parameter group."""


def group_names(groups: Sequence[State]) -> list[str]:
    """The names of parameter groups, for one without its place."""
    return [group.get("group_name", str(index)) for index, group in enumerate(groups)]


def set_lr(group: State, lr: float) -> None:
    """Set a group's rate, into the tensor where the rate is one: a captured step reads it there."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def initial_lr_of(group: State) -> float:
    """The rate that a scheduler started from; without one, the rate itself."""
    return float(group["initial_lr"] if "initial_lr" in group else group["lr"])
