"""What state an optimizer keeps for a parameter, found out by letting it step once on a stand-in."""

from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rfdetr_train.errors import UserError
from rfdetr_train.state_dicts import State

NO_MATTER = ("params", "param_names", "group_name", "lr", "initial_lr", "weight_decay")
"""Entries of a parameter group that make no difference to which state its parameters have."""


class ExpectedState:
    """Keys, shapes, types and devices of an optimizer's state; each kind of parameter is tried once."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._tried: dict[tuple[Any, ...], State] = {}

    def of(self, group: State, parameter: Tensor) -> State:
        """The state of `parameter`, or, before its first step, what it will be (the values mean nothing)."""
        if self._optimizer.state.get(parameter):
            return self._optimizer.state[parameter]
        settings = repr({key: value for key, value in group.items() if key not in NO_MATTER})
        key = (settings, parameter.shape, parameter.dtype, parameter.device)
        if key not in self._tried:
            self._tried[key] = _try_step(self._optimizer, group, parameter)
        return self._tried[key]


def _try_step(optimizer: Optimizer, group: State, parameter: Tensor) -> State:
    stand_in = nn.Parameter(torch.zeros_like(parameter))
    stand_in.grad = torch.zeros_like(parameter)
    probe = object.__new__(type(optimizer))
    # Neither the hooks nor the `step` that schedulers wrap may notice.
    probe.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    probe._optimizer_step_pre_hooks = OrderedDict()
    probe._optimizer_step_post_hooks = OrderedDict()
    probe.param_groups = [{**group, "params": [stand_in]}]
    probe.state = defaultdict(dict)
    try:
        probe.step()
    except (TypeError, RuntimeError) as error:
        name = type(optimizer).__name__
        raise UserError(f"resume: {name} cannot be restored by name, for a trial step fails: {error}") from error
    return probe.state[stand_in]
