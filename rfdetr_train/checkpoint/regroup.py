"""Restore optimizer and scheduler by parameter name, under any grouping; the present config's hyperparameters win.

`Optimizer.load_state_dict` goes by position: it takes the moments of other parameters when groups are permuted, fails
on another number of them, and lets the file's rates overwrite the config's. None of that is wanted here.
"""

import copy
import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from rfdetr_train.checkpoint.expected_state import ExpectedState
from rfdetr_train.checkpoint.regroup_scheduler import (
    common_share,
    initial_lr_of,
    regroup_scheduler_state,
    rescaled,
)
from rfdetr_train.checkpoint.saved_optimizer import SavedOptimizer, Sources, read_saved
from rfdetr_train.state_dicts import State

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
    expected_state = ExpectedState(optimizer)
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            expected = expected_state.of(group, parameter)
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
    """The share of its initial rate that the schedule had reached; a new group takes the one that all others share."""
    indices = saved.groups_of(group["param_names"]) or range(len(saved.groups))
    members = [saved.groups[index] for index in indices]
    common_share(f"group {group.get('group_name')!r}", [member["lr"] for member in members], members)
    lr = rescaled(members[0]["lr"], members[0], initial_lr_of(group))
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr
    if keep_momentum:
        group.update({key: members[0][key] for key in ("betas", "momentum") if key in group and key in members[0]})


def _cycles_momentum(state: State) -> bool:
    return bool(state.get("cycle_momentum")) or any(_cycles_momentum(child) for child in state.get("_schedulers", []))
