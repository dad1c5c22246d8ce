"""The state dicts of optimizers and schedulers: which entries of a scheduler's go by parameter group."""

from typing import Any

State = dict[str, Any]
"""A state dict, or a part of one such as a parameter group or a parameter's moments."""

PRESENT_RATES = ("_last_lr", "full_lrs")
"""The rates that the groups have reached; they scale with a group's initial rate."""
GROUP_SETTINGS = ("lr_lambdas", "min_lrs")
"""What a torch scheduler was given for each group."""
PER_GROUP = ("base_lrs", *PRESENT_RATES, *GROUP_SETTINGS)
"""Entries of a scheduler's state that hold one value per parameter group."""
