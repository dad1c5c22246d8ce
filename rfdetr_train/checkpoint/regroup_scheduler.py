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
    shares = [share_of_initial(lr, group) for lr, group in zip(rates, saved_groups, strict=True)]
    if max(shares) - min(shares) > 1e-9 * max(shares):
        raise UserError(
            f"resume: {what} has reached {min(shares):.6g} and {max(shares):.6g} of its initial rates, one is wanted; "
            "resume with optimizer.merge_groups=false and the same parts frozen"
        )
    return shares[0]


def _entry(key: str, values: list[Any], group: State, saved: SavedOptimizer) -> Any:
    """The entry of one of our groups, which its members' groups in the file must agree on."""
    initial_lr = initial_lr_of(group)
    indices = saved.groups_of(group["param_names"])
    if not indices:
        return _entry_of_new(key, values, initial_lr, saved)
    first = values[indices[0]]
    for index in indices[1:]:
        if values[index] != first:
            raise UserError(
                f"resume: {key} disagrees within group {group.get('group_name')!r}: {first} and {values[index]}; "
                "resume with the run's own rates, or with optimizer.merge_groups=false"
            )
    if key == "base_lrs":
        return initial_lr
    return rescaled(first, saved.groups[indices[0]], initial_lr) if key in PRESENT_RATES else first


def _entry_of_new(key: str, values: list[Any], initial_lr: float, saved: SavedOptimizer) -> Any:
    """A group of parameters that the file does not know goes by what all groups of the file share."""
    if key == "base_lrs":
        return initial_lr
    return common_share(key, values, saved.groups) * initial_lr if key in PRESENT_RATES else values[0]


def _check_length(key: str, values: list[Any], num_groups: int) -> None:
    if len(values) != num_groups:
        raise UserError(
            f"resume: the scheduler's {key} has {len(values)} entries, the optimizer saved with it {num_groups} groups"
        )
