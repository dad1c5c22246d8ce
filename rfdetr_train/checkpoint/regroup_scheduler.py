"""Bring a scheduler's state, one entry per saved parameter group, to the groups of this run."""

from collections.abc import Sequence
from typing import Any

from rfdetr_train.checkpoint.saved_optimizer import SavedOptimizer
from rfdetr_train.errors import UserError
from rfdetr_train.state_dicts import PER_GROUP, PRESENT_RATES, State


def regroup_scheduler_state(state: State, saved: SavedOptimizer, groups: Sequence[State]) -> State:
    """The state over `groups`, the `param_groups` of this run's optimizer; recursive in `_schedulers`.

    The initial rates are this run's, present rates keep their share of them. Raises UserError, with the values, where
    the entries of one group disagree and, with both numbers, where the state is not over the saved groups.
    """
    regrouped = {}
    for key, value in state.items():
        if key == "_schedulers":
            regrouped[key] = [regroup_scheduler_state(child, saved, groups) for child in value]
        elif key in PER_GROUP and isinstance(value, list):
            _check_length(key, value, len(saved.groups))
            regrouped[key] = [_entry(key, value, group, saved) for group in groups]
        else:
            regrouped[key] = value
    return regrouped


def initial_lr_of(group: State) -> float:
    """The rate that a scheduler started from; without one, the rate itself."""
    return float(group["initial_lr"] if "initial_lr" in group else group["lr"])


def share_of_initial(lr: Any, saved_group: State) -> float:
    """A saved rate over its group's initial one; a group that no scheduler has touched has no other."""
    initial_lr = initial_lr_of(saved_group)
    return float(lr) / initial_lr if initial_lr else 1.0


def rescaled(lr: Any, saved_group: State, initial_lr: float) -> float:
    """A saved rate for a group that begins at `initial_lr`; the same bits where the saved one did too."""
    if initial_lr_of(saved_group) == initial_lr:
        return float(lr)
    return share_of_initial(lr, saved_group) * initial_lr


def common_share(what: str, rates: Sequence[Any], saved_groups: Sequence[State]) -> float:
    """The one share of their initial rates that all these rates have; UserError where they differ."""
    moving = [(lr, group) for lr, group in zip(rates, saved_groups, strict=True) if initial_lr_of(group)]
    shares = [share_of_initial(lr, group) for lr, group in moving] or [1.0]  # a rate of 0 has no share to speak of
    if max(shares) - min(shares) > 1e-9 * max(shares):
        raise UserError(
            f"resume: {what} has reached {min(shares):.6g} and {max(shares):.6g} of its initial rates, one is wanted; "
            "resume with optimizer.merge_groups=false and the same parts frozen"
        )
    return shares[0]


def _entry(key: str, values: list[Any], group: State, saved: SavedOptimizer) -> Any:
    """The entry of one of our groups: of its members' groups in the file, or of all if the file knows no member.

    Groups of other initial rates may have become one, so of present rates only the share must be the same.
    """
    initial_lr = initial_lr_of(group)
    if key == "base_lrs":
        return initial_lr
    known = saved.groups_of(group["param_names"])
    indices = known or range(len(saved.groups))
    entries, saved_groups = [values[index] for index in indices], [saved.groups[index] for index in indices]
    what = f"{key} of group {group.get('group_name')!r}"
    if key in PRESENT_RATES:
        common_share(what, entries, saved_groups)
        return rescaled(entries[0], saved_groups[0], initial_lr)
    for entry in entries[1:] if known else ():
        if entry != entries[0]:
            raise UserError(
                f"resume: {what} is {entries[0]} for some of its parameters and {entry} for others; "
                "resume with the run's own rates, or with optimizer.merge_groups=false"
            )
    return entries[0]


def _check_length(key: str, values: list[Any], num_groups: int) -> None:
    if len(values) != num_groups:
        raise UserError(
            f"resume: the scheduler's {key} has {len(values)} entries, the optimizer saved with it {num_groups} groups"
        )
