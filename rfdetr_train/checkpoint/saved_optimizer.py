"""A saved optimizer state by parameter name: where each of our parameters, and each of our groups, comes from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch.optim import Optimizer

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


def reference_order(names: Iterable[str]) -> list[str]:
    """The order of the reference's single-parameter groups, from its parameter names in the order of its state dict."""
    names = list(names)
    encoder = [name for name in names if name.startswith("backbone.0.encoder.")]
    decoder = [name for name in names if name.startswith("transformer.decoder.")]
    elsewhere = [name for name in names if not name.startswith(("backbone.0.encoder.", "transformer.decoder."))]
    return elsewhere + encoder + decoder


def reference_groups(
    order: Iterable[str], *, layer_decay: float = 0.8, component_decay: float = 0.7, weight_decay: float = 1e-4
) -> list[list[str]]:
    """How newer releases of the reference join the single-parameter groups `order`: those of equal hyperparameters.

    Of the recipe only matters which parameters come out equal.
    """

    def key(name: str) -> tuple[object, ...]:
        if not name.startswith("backbone.0.encoder."):
            return ("decoder",) if name.startswith("transformer.decoder.") and component_decay != 1 else ("elsewhere",)
        block = re.search(r"\.layer\.(\d+)\.", name)
        depth = block[1] if block else "embeddings" if "embeddings" in name else "norm"
        decays = not any(part in name for part in ("bias", "norm", "embeddings"))
        return "encoder", depth if layer_decay != 1 else "", decays if weight_decay else True

    joined: dict[tuple[object, ...], list[str]] = {}
    for name in order:
        joined.setdefault(key(name), []).append(name)
    return list(joined.values())


def read_saved(saved: State, optimizer: Optimizer, sources: Sources | None = None) -> SavedOptimizer:
    """Key a saved state by name. One without names must have our groups, in our order.

    Raises UserError, with both numbers, for a state without names in other groups.
    """
    groups = saved["param_groups"]
    if any("param_names" not in group for group in groups):
        groups = _named_by_position(groups, optimizer)
        sources = None
    name_of = {key: name for group in groups for key, name in zip(group["params"], group["param_names"], strict=True)}
    state = {name_of[key]: moments for key, moments in saved["state"].items()}
    return SavedOptimizer(groups, state, sources or {})


def _named_by_position(groups: list[State], optimizer: Optimizer) -> list[State]:
    saved_sizes = [len(group["params"]) for group in groups]
    our_sizes = [len(group["params"]) for group in optimizer.param_groups]
    if saved_sizes != our_sizes:
        raise UserError(
            f"resume: the checkpoint's optimizer has {sum(saved_sizes)} parameters in {len(saved_sizes)} groups "
            f"without names, this run {sum(our_sizes)} in {len(our_sizes)}; start a new run from its weights instead"
        )
    names = [group["param_names"] for group in optimizer.param_groups]
    return [{**group, "param_names": own} for group, own in zip(groups, names, strict=True)]


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
