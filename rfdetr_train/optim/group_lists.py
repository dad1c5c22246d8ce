"""Lists with one entry per parameter group: their length, and what becomes of one with an entry per parameter."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from rfdetr_train.errors import UserError

PER_GROUP_ARGUMENTS = ("lr_lambda", "min_lr", "max_lr", "base_lr", "base_momentum", "max_momentum")
"""Arguments of torch schedulers that may be a list over the groups."""

SAMPLED_STEPS = range(0, 20_000, 7)
"""Where two functions of the step are compared."""


def per_group(
    key: str, values: Sequence[Any], optimizer: Optimizer, parameter_order: Sequence[str] | None = None
) -> list[Any]:
    """`values` with one entry per group of the optimizer.

    A list with one entry per trained parameter (the layout of runs that had a group for each) is collapsed where the
    entries of each group agree; parameter_order gives the order of their names, and may hold others. Raises UserError
    with both numbers for another length, and with both names where entries differ.
    """
    groups = optimizer.param_groups
    if len(values) == len(groups):
        return list(values)
    trained = {name for group in groups for name in group.get("param_names", [])}
    order = [name for name in parameter_order or [] if name in trained]
    if not order or len(values) != len(order):
        raise UserError(
            f"{key}: has {len(values)} entries for {len(groups)} parameter groups ({len(trained)} parameters); "
            "give one entry per group, or one for all"
        )
    by_name = dict(zip(order, values, strict=True))
    return [_common(key, group, by_name) for group in groups]


def _common(key: str, group: dict[str, Any], by_name: dict[str, Any]) -> Any:
    first_name, *other_names = group["param_names"]
    first = by_name[first_name]
    for name in other_names:
        if not _agree(first, by_name[name]):
            raise UserError(
                f"{key}: the entries of {first_name} and {name} differ, which share group {group['group_name']!r}; "
                "make them equal or set optimizer.merge_groups=false"
            )
    return first


def _agree(first: Any, second: Any) -> bool:
    if first is second or not (callable(first) and callable(second)):
        return bool(first is second or first == second)
    return all(first(step) == second(step) for step in SAMPLED_STEPS)
