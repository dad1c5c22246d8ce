"""Optimizers that torch lacks in this form: Lion, and Muon with AdamW as one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer


class _ClosureOptimizer(Optimizer):
    """An optimizer whose `step` evaluates the closure, if there is one, and leaves the update to `_update`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; returns the loss of the closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update()
        return loss

    def _update(self) -> None:
        raise NotImplementedError


class Lion(_ClosureOptimizer):
    """Lion (arXiv 2302.06675): the sign of an interpolated momentum, with decoupled weight decay.

    One step with gradient g, momentum m, rate lr, weight decay wd:
        p <- p * (1 - lr * wd)
        p <- p - lr * sign(beta1 * m + (1 - beta1) * g)
        m <- beta2 * m + (1 - beta2) * g
    The state is m alone, as `exp_avg`. Each weight moves by lr whatever the gradient, so the rate wants to be 3 to 10
    times below AdamW's. foreach: multi-tensor loops over a group rather than its tensors one by one, which agree to
    the bit on a CPU; None chooses them off the CPU.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
    ) -> None:
        if not lr >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Invalid betas: {betas}")
        if not weight_decay >= 0.0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "foreach": foreach})

    def _update(self) -> None:
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            foreach = group["foreach"]
            if foreach is None:
                foreach = all(parameter.device.type != "cpu" for parameter in params)
            for together in [params] if foreach and params else [[parameter] for parameter in params]:
                self._update_together(together, group)

    def _update_together(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads: list[Any] = [parameter.grad for parameter in params]
        momenta = [self._momentum(parameter) for parameter in params]
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        torch._foreach_mul_(params, 1.0 - lr * group["weight_decay"])
        directions = torch._foreach_mul(momenta, beta1)
        torch._foreach_add_(directions, grads, alpha=1.0 - beta1)
        torch._foreach_sign_(directions)
        torch._foreach_add_(params, directions, alpha=-lr)
        torch._foreach_mul_(momenta, beta2)
        torch._foreach_add_(momenta, grads, alpha=1.0 - beta2)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state["exp_avg"]


class MuonWithAdamW(_ClosureOptimizer):
    """`torch.optim.Muon` on the groups marked `use_muon: True`, `torch.optim.AdamW` on the others.

    To schedulers, hooks and checkpoints it is one optimizer: one list of `param_groups`, one `state`. The two torch
    optimizers inside own nothing; each step hands them their groups and the common state.
    """

    def __init__(self, params: list[dict[str, Any]], muon: dict[str, Any], adamw: dict[str, Any]) -> None:
        """`muon` and `adamw` are the keyword arguments of the two classes; lr and weight decay stand in the groups."""
        # The two are built on a stand-in: only their defaults and their `step` are wanted.
        self._muon = Muon([torch.zeros(1, 1)], **muon)
        self._adamw = AdamW([torch.zeros(1)], **adamw)
        super().__init__(params, {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Fill what the group leaves open from the defaults of the algorithm that it is for."""
        inner = self._muon if param_group["use_muon"] else self._adamw
        super().add_param_group({**param_group, **inner.defaults, **param_group})

    def _update(self) -> None:
        for inner, use_muon in ((self._muon, True), (self._adamw, False)):
            # Handed over anew each time: load_state_dict replaces both the groups and the state.
            inner.param_groups = [group for group in self.param_groups if group["use_muon"] is use_muon]
            inner.state = self.state
            inner.step()
