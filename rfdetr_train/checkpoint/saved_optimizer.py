"""Optimizer state by parameter name: what a file holds for our parameters, what an optimizer wants, and its size."""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from rfdetr_train.errors import UserError
from rfdetr_train.state_dicts import State

Sources = Mapping[str, Sequence[str]]
"""Our name -> the saved names whose tensors, joined along dimension 0, make it."""


@dataclass(frozen=True)
class SavedOptimizer:
    """`torch.optim.Optimizer.state_dict()`, keyed by name."""

    groups: list[State]
    """The saved groups, hyperparameters and `param_names`, in their order."""
    state: dict[str, State]
    """Saved name -> moments; a parameter that never had a gradient has none."""
    sources: Sources = field(default_factory=dict)
    """The names that differ from ours."""

    def names_of(self, name: str) -> Sequence[str]:
        """The saved names that our parameter `name` comes from."""
        return self.sources.get(name, (name,))

    def moments_of(self, name: str) -> State | None:
        """The moments for our parameter `name`, joined where it comes from several; None where the file has none."""
        parts = [self.state[source] for source in self.names_of(name) if source in self.state]
        if not parts or len(parts) < len(self.names_of(name)):
            return None
        return parts[0] if len(parts) == 1 else _joined(name, parts)

    def groups_of(self, names: Sequence[str]) -> list[int]:
        """The saved groups that the parameters `names` come from, in order; names not in the file are passed over."""
        sources = [source for name in names for source in self.names_of(name)]
        return sorted({self._group_of_name[source] for source in sources if source in self._group_of_name})

    @cached_property
    def _group_of_name(self) -> dict[str, int]:
        return {name: index for index, group in enumerate(self.groups) for name in group["param_names"]}


def with_names(saved: State, names: Sequence[Sequence[str]]) -> State:
    """Name a state that has no names, if its groups are as many and as long as those of `names`.

    Any other state, of other groups or not recognised, is returned untouched.
    """
    groups = saved["param_groups"]
    unnamed = all("param_names" not in group for group in groups)
    if not unnamed or [len(group["params"]) for group in groups] != [len(own) for own in names]:
        return saved
    return {
        **saved,
        "param_groups": [{**group, "param_names": list(own)} for group, own in zip(groups, names, strict=True)],
    }


def read_saved(saved: State, optimizer: Optimizer, sources: Sources | None = None) -> SavedOptimizer:
    """Key a saved state by name. One without names must have our groups, in our order.

    Raises UserError, with both numbers, for a state without names in other groups.
    """
    groups = saved["param_groups"]
    if any("param_names" not in group for group in groups):
        sources, names = None, [group["param_names"] for group in optimizer.param_groups]
        groups = with_names(saved, names)["param_groups"]
        if any("param_names" not in group for group in groups):
            ours = f"{sum(map(len, names))} in {len(names)}"
            raise UserError(
                f"resume: the checkpoint's optimizer has {sum(len(group['params']) for group in groups)} parameters in "
                f"{len(groups)} groups without names, this run {ours}; start a new run from its weights instead"
            )
    name_of = {key: name for group in groups for key, name in zip(group["params"], group["param_names"], strict=True)}
    state = {name_of[key]: moments for key, moments in saved["state"].items()}
    return SavedOptimizer(groups, state, sources or {})


def _joined(name: str, parts: list[State]) -> State:
    """Moments along dimension 0; counters of steps must be equal."""
    joined = {}
    for key, first in parts[0].items():
        values = [part[key] for part in parts]
        if torch.is_tensor(first) and first.ndim:
            joined[key] = torch.cat(values)
        elif all(value == first for value in values):
            joined[key] = first
        else:
            raise UserError(f"resume: {name} joins parameters whose {key} differs: {[float(v) for v in values]}")
    return joined


def expected_state(optimizer: Optimizer, group: State, parameter: Tensor) -> State:
    """The state of `parameter`, or what it will be after its first step: keys, shapes, types and devices.

    Found out by letting the optimizer step once on a stand-in, so that the values mean nothing.
    """
    if optimizer.state.get(parameter):
        return optimizer.state[parameter]
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


def state_bytes(optimizer: Optimizer) -> int:
    """About what the optimizer's state will take once all parameters have been stepped."""
    if isinstance(optimizer, LBFGS):  # of vectors over all parameters: a direction, a gradient, and the history's pairs
        (group,) = optimizer.param_groups
        return (2 + 2 * group["history_size"]) * sum(parameter.nbytes for parameter in group["params"])
    known: dict[tuple[int, torch.Size, torch.dtype], int] = {}
    total = 0
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            alike = (number, parameter.shape, parameter.dtype)
            if alike not in known:
                known[alike] = _state_bytes_of(optimizer, group, parameter)
            total += known[alike]
    return total


def _state_bytes_of(optimizer: Optimizer, group: State, parameter: Tensor) -> int:
    try:
        state = expected_state(optimizer, group, parameter)
    except UserError:  # one that cannot be tried alone: two moments, as most have
        return 2 * parameter.nbytes
    return sum(value.nbytes for value in state.values() if isinstance(value, Tensor))
