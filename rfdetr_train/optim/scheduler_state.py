"""The state of torch schedulers: as plain values, and extended by groups that join later."""

import logging
from collections import Counter
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rfdetr_train.errors import UserError
from rfdetr_train.state_dicts import GROUP_SETTINGS, State

log = logging.getLogger(__name__)

PROGRESS = (
    *("last_epoch", "_step_count", "_is_initial", "_get_lr_called_within_step"),
    *("base_lrs", "_last_lr", "lr_lambdas", "_schedulers"),
    *("best", "num_bad_epochs", "cooldown_counter"),  # ReduceLROnPlateau
    *("T_cur", "T_i"),  # CosineAnnealingWarmRestarts
)
"""Entries of torch's schedulers that say how far they have come; the others are their settings."""


def kind_of(scheduler: LRScheduler) -> str:
    """`SequentialLR(LinearLR, StepLR)`: what a state must come from to fit."""
    name = type(scheduler).__name__
    children = getattr(scheduler, "_schedulers", None)
    return f"{name}({', '.join(kind_of(child) for child in children)})" if children else name


def plain(value: Any) -> Any:
    """Only what `torch.load(weights_only=True)` reads and JSON knows: no tensors, no counters, no tuples."""
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def loadable(scheduler: LRScheduler, state: State) -> State:
    """What to load of `state`: for torch's own classes how far they have come; the present config's settings hold.

    A class from elsewhere gets all of it. Undoes `plain` where a scheduler insists on a type of its own.
    """
    present = scheduler.state_dict()
    of_torch = type(scheduler).__module__.startswith("torch.optim.")
    chosen = {}
    for key, value in state.items():
        if of_torch and key not in PROGRESS and key in present:
            if plain(present[key]) != value:
                log.info("%s: %s is %s now, was %s", type(scheduler).__name__, key, plain(present[key]), value)
            value = present[key]
        chosen[key] = Counter(value) if isinstance(present.get(key), Counter) else value
    if "_schedulers" in state:
        pairs = zip(scheduler._schedulers, state["_schedulers"], strict=True)  # type: ignore[attr-defined]
        chosen["_schedulers"] = [loadable(child, child_state) for child, child_state in pairs]
    return chosen


def check_extensible(scheduler: LRScheduler) -> None:
    """Refuse schedulers whose groups differ in more than their initial rate: what a new group gets is not defined."""
    name = type(scheduler).__name__
    if hasattr(scheduler, "max_lrs") or hasattr(scheduler, "_schedule_phases"):
        raise UserError(f"freeze: {name} fixes its rates when it is built, so no part can join later; use a preset")
    if getattr(scheduler, "eta_min", 0) or any(getattr(scheduler, "min_lrs", [])):
        remedy = "set it to 0, or use a preset with scheduler.min_factor"
        raise UserError(
            f"freeze: {name} has an absolute floor, so what a part that joins gets is not defined; {remedy}"
        )
    for key in GROUP_SETTINGS:
        entries = getattr(scheduler, key, [])
        if any(entry != entries[0] for entry in entries):
            raise UserError(f"freeze: {name} has its own {key} for each group, so no part can join later; give one")
    for child in getattr(scheduler, "_schedulers", []):
        check_extensible(child)


def extend(scheduler: LRScheduler, optimizer: Optimizer, first: int) -> None:
    """Give the scheduler, and those inside it, entries for the optimizer's groups from index `first` on."""
    new_groups = optimizer.param_groups[first:]
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs += [float(group["initial_lr"]) for group in new_groups]
    scheduler._last_lr = [float(group["lr"]) for group in optimizer.param_groups]
    for key in GROUP_SETTINGS:
        if hasattr(scheduler, key):
            entries = getattr(scheduler, key)
            entries += [entries[0]] * len(new_groups)
    for child in getattr(scheduler, "_schedulers", []):
        extend(child, optimizer, first)
