"""Restore optimizer and scheduler by parameter name, under any grouping; the present config's hyperparameters win.

`Optimizer.load_state_dict` goes by position: it takes the moments of other parameters when groups are permuted, fails
on another number of them, and lets the file's rates overwrite the config's. None of that is wanted here.
"""

import copy
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from rfdetr_train.checkpoint.saved_optimizer import SavedOptimizer, Sources, expected_state, read_saved
from rfdetr_train.errors import UserError
from rfdetr_train.state_dicts import PER_GROUP, PRESENT_RATES, State, initial_lr_of, set_lr

log = logging.getLogger(__name__)


class Scheduler(Protocol):
    """What a restore needs of a scheduler."""

    def load_state_dict(self, state: State) -> None: ...


@dataclass
class Account:
    """What became of the saved moments."""

    moved: list[str] = field(default_factory=list)
    """Parameters that took over theirs."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Saved ones that were left behind, with the reason."""
    new: list[str] = field(default_factory=list)
    """Parameters that start without, because the file has none for them."""

    def log(self) -> None:
        """Say the numbers and the reasons; the names behind each are for the log file."""
        log.info("optimizer state: %d moved, %d dropped, %d new", len(self.moved), len(self.dropped), len(self.new))
        for reason, count in Counter(self.dropped.values()).items():
            log.info("dropped: %d tensors (%s)", count, reason)
        for name, reason in self.dropped.items():
            log.debug("dropped: %s (%s)", name, reason)


def restore_optimization(
    optimizer: Optimizer,
    scheduler: Scheduler,
    saved_optimizer: State,
    saved_scheduler: State,
    *,
    sources: Sources | None = None,
    fresh: Collection[str] = (),
) -> Account:
    """Load the optimizer's state, then the scheduler's, after both have been built.

    The scheduler must be built first of all, because building it writes the rates of step 0 into the optimizer's
    groups. The optimizer's state comes next, because it puts the saved rates there. The scheduler's state comes last,
    because a scheduler goes on from the rates that it finds in the groups.

    Args:
        optimizer: over this run's groups, with `param_names`.
        scheduler: built on the optimizer already, of the kind that was saved.
        saved_optimizer: `optimizer.state_dict()` of the run to continue, under any grouping.
        saved_scheduler: the scheduler state saved with it.
        sources: our name -> the saved names that it is joined from, where they differ.
        fresh: our names of parameters whose weights are not the saved ones, so that the saved moments are not theirs.

    Raises:
        UserError: the scheduler's state is not over the saved groups, or its entries disagree within one of ours.
    """
    saved = read_saved(saved_optimizer, optimizer, sources)
    cycles_momentum = _cycles_momentum(saved_scheduler)
    account = load_optimizer_state(optimizer, saved, keep_momentum=cycles_momentum, fresh=fresh)
    scheduler.load_state_dict(regroup_scheduler_state(saved_scheduler, saved, optimizer.param_groups))
    return account


def load_optimizer_state(
    optimizer: Optimizer, saved: SavedOptimizer, *, keep_momentum: bool = False, fresh: Collection[str] = ()
) -> Account:
    """Give each parameter the moments saved under its name, and each group the rate that its schedule had reached.

    Everything else in the groups stays as the present config has it; keep_momentum makes an exception of betas and
    momentum, for a schedule that moves them. Parameters named in `fresh` start without moments. The account is logged.
    """
    account = Account()
    if isinstance(optimizer, LBFGS):
        _load_history(optimizer, saved, account)
    else:
        _load_moments(optimizer, saved, account, fresh)
    trained = {name for group in optimizer.param_groups for own in group["param_names"] for name in saved.names_of(own)}
    account.dropped.update({name: "is not trained here" for name in saved.state if name not in trained})
    for group in optimizer.param_groups:
        _load_rates(group, saved, keep_momentum)
    account.log()
    return account


def _load_moments(optimizer: Optimizer, saved: SavedOptimizer, account: Account, fresh: Collection[str]) -> None:
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            expected = expected_state(optimizer, group, parameter)
            moments = saved.moments_of(name)
            if moments is None:
                if expected:
                    account.new.append(name)
            elif name in fresh:
                account.dropped[name] = "its weights are not the saved ones"
            elif reason := _misfit(moments, expected):
                account.dropped[name] = reason
            else:
                optimizer.state[parameter] = {key: _like(moments[key], value) for key, value in expected.items()}
                account.moved.append(name)


def _misfit(moments: State, expected: State) -> str | None:
    """Why saved moments cannot serve as the expected state; None if they can."""
    if not expected:
        return "nothing is kept for it here"
    missing = [key for key in expected if key not in moments]
    if missing:
        return f"has no {', '.join(missing)}"
    for key, value in expected.items():
        saved_shape, shape = _shape(moments[key]), _shape(value)
        if saved_shape != shape:
            return f"{key} has shape {saved_shape}, here {shape}"
    return None


def _shape(value: Any) -> tuple[int, ...] | None:
    """Of a tensor or a number; None for what else an optimizer may keep."""
    return tuple(torch.as_tensor(value).shape) if isinstance(value, Tensor | int | float) else None


def _like(value: Any, expected: Any) -> Any:
    """A copy of the type and on the device that the optimizer wants: a fused one counts its steps on the device."""
    if isinstance(expected, Tensor):
        return torch.as_tensor(value).to(device=expected.device, dtype=expected.dtype, copy=True)
    return copy.deepcopy(value)


def _load_history(optimizer: LBFGS, saved: SavedOptimizer, account: Account) -> None:
    """L-BFGS keeps vectors over all parameters at once: good for the same ones in the same order, or for nothing."""
    (group,) = optimizer.param_groups
    names, saved_names = list(group["param_names"]), [name for one in saved.groups for name in one["param_names"]]
    history = saved.state.get(saved_names[0], {})
    size = sum(parameter.numel() for parameter in group["params"])
    if not history:
        account.new += names
    elif names == saved_names and "old_dirs" in history and history["prev_flat_grad"].numel() == size:
        device = group["params"][0].device
        optimizer.state[group["params"][0]] = {key: _to(value, device) for key, value in history.items()}
        account.moved += names
    else:
        account.dropped.update(dict.fromkeys(names, "is no L-BFGS history of the same parameters"))


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    return [_to(item, device) for item in value] if isinstance(value, list) else value


def _load_rates(group: State, saved: SavedOptimizer, keep_momentum: bool) -> None:
    set_lr(group, _entry("lr", [one["lr"] for one in saved.groups], group, saved))
    if keep_momentum:
        member = saved.groups[(saved.groups_of(group["param_names"]) or [0])[0]]
        group.update({key: member[key] for key in ("betas", "momentum") if key in group and key in member})


def _cycles_momentum(state: State) -> bool:
    return bool(state.get("cycle_momentum")) or any(_cycles_momentum(child) for child in state.get("_schedulers", []))


def regroup_scheduler_state(state: State, saved: SavedOptimizer, groups: Sequence[State]) -> State:
    """The state, one entry per saved group, over `groups`, those of this run's optimizer; recursive in `_schedulers`.

    The initial rates are this run's, present rates keep their share of them. Raises UserError, with the values, where
    the entries of one group disagree and, with both numbers, where the state is not over the saved groups.
    """
    regrouped = {}
    for key, value in state.items():
        if key == "_schedulers":
            regrouped[key] = [regroup_scheduler_state(child, saved, groups) for child in value]
        elif key in PER_GROUP and isinstance(value, list):
            if len(value) != len(saved.groups):
                raise UserError(
                    f"resume: the scheduler's {key} has {len(value)} entries, the optimizer saved with it "
                    f"{len(saved.groups)} groups"
                )
            regrouped[key] = [_entry(key, value, group, saved) for group in groups]
        else:
            regrouped[key] = value
    return regrouped


def _entry(key: str, values: list[Any], group: State, saved: SavedOptimizer) -> Any:
    """The entry of one of our groups: of its members' groups in the file, or of all if the file knows no member."""
    if key == "base_lrs":
        return initial_lr_of(group)
    known = saved.groups_of(group["param_names"])
    indices = known or range(len(saved.groups))
    entries, what = [values[index] for index in indices], f"{key} of group {group.get('group_name')!r}"
    if key in ("lr", *PRESENT_RATES):
        return _rescaled(what, entries, [saved.groups[index] for index in indices], initial_lr_of(group))
    for entry in entries[1:] if known else ():
        if entry != entries[0]:
            raise UserError(
                f"resume: {what} is {entries[0]} for some of its parameters and {entry} for others; "
                "resume with the run's own rates, or with optimizer.merge_groups=false"
            )
    return entries[0]


def _rescaled(what: str, rates: Sequence[Any], saved_groups: Sequence[State], initial_lr: float) -> float:
    """The rate of a group that begins at `initial_lr`; the same bits where the saved one did too.

    Groups of other initial rates may have become one, so only the share that each has reached must be the same.
    """
    initial = [initial_lr_of(group) for group in saved_groups]
    shares = [float(lr) / first for lr, first in zip(rates, initial, strict=True) if first]
    shares = shares or [1.0]  # a rate of 0 has no share to speak of
    if max(shares) - min(shares) > 1e-9 * max(shares):
        raise UserError(
            f"resume: {what} has reached {min(shares):.6g} and {max(shares):.6g} of its initial rates, one is wanted; "
            "resume with optimizer.merge_groups=false and the same parts frozen"
        )
    return float(rates[0]) if initial[0] == initial_lr else shares[0] * initial_lr
