"""Step hooks: the norms of gradient and update of each parameter group, measured on the steps that ask for them."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rfdetr_train.state_dicts import group_names

Norms = dict[str, dict[str, float]]
"""`grad_norm` and `update_norm`, each by group name."""


class StepNorms:
    """Measures single steps of an optimizer; a step that was not asked for costs nothing.

    `arm()` before a step, `read()` after it. A measured step costs a copy of the trained parameters for its duration.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._armed = False
        self._before: list[list[Tensor]] = []
        self._norms: dict[str, Tensor] = {}
        self._names: list[str] = []
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def arm(self) -> None:
        """Measure the next step."""
        self._armed = True

    def read(self) -> Norms | None:
        """The L2 norms of the step, once; None if it was not measured, or skipped. One copy from the device."""
        self._armed, self._before = False, []
        if not self._norms:
            return None
        values = {kind: norms.tolist() for kind, norms in self._norms.items()}
        self._norms = {}
        return {kind: dict(zip(self._names, norms, strict=True)) for kind, norms in values.items()}

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._armed:
            self._before = [[parameter.clone() for parameter in group["params"]] for group in optimizer.param_groups]

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Gradients are read here, where a step with a closure has them too."""
        if not self._armed:
            return
        groups = optimizer.param_groups
        self._names = group_names(groups)
        updates = [
            torch._foreach_sub([parameter.detach() for parameter in group["params"]], before)
            for group, before in zip(groups, self._before, strict=True)
        ]
        grads = [[p.grad for p in group["params"] if p.grad is not None] for group in groups]
        self._norms = {
            "grad_norm": torch.stack([_norm(tensors, groups[0]) for tensors in grads]),
            "update_norm": torch.stack([_norm(list(tensors), groups[0]) for tensors in updates]),
        }
        self._armed, self._before = False, []


def _norm(tensors: list[Tensor], group: dict[str, Any]) -> Tensor:
    """The norm over all tensors as a float32 scalar on their device; 0 for none."""
    if not tensors:
        return torch.zeros((), device=group["params"][0].device)
    return torch.linalg.vector_norm(torch.stack([norm.float() for norm in torch._foreach_norm(tensors)]))
