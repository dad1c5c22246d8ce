"""Lion (arXiv 2302.06675): the sign of an interpolated momentum, with decoupled weight decay."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lion(Optimizer):
    """Lion, in the style of `torch.optim`.

    One step with gradient g, momentum m, rate lr, weight decay wd:
        p <- p * (1 - lr * wd)
        p <- p - lr * sign(beta1 * m + (1 - beta1) * g)
        m <- beta2 * m + (1 - beta2) * g
    The state is m alone, as `exp_avg`. Each weight moves by lr whatever the gradient, so the rate wants to be 3 to 10
    times below AdamW's. foreach: None chooses multi-tensor loops off the CPU; both paths do the same operations in the
    same order and agree to the bit on a CPU.
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

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; returns the loss of the closure, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            if params:
                self._step_group(params, group)
        return loss

    def _step_group(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads = [parameter.grad for parameter in params]
        momenta = [self._momentum(parameter) for parameter in params]
        foreach = group["foreach"]
        if foreach is None:
            foreach = all(parameter.device.type != "cpu" for parameter in params)
        update = _foreach_lion if foreach else _loop_lion
        update(params, grads, momenta, group)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state["exp_avg"]


def _loop_lion(params: list[Tensor], grads: list[Any], momenta: list[Tensor], group: dict[str, Any]) -> None:
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    for parameter, grad, momentum in zip(params, grads, momenta, strict=True):
        parameter.mul_(1.0 - lr * group["weight_decay"])
        direction = momentum.mul(beta1).add_(grad, alpha=1.0 - beta1).sign_()
        parameter.add_(direction, alpha=-lr)
        momentum.mul_(beta2).add_(grad, alpha=1.0 - beta2)


def _foreach_lion(params: list[Tensor], grads: list[Any], momenta: list[Tensor], group: dict[str, Any]) -> None:
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    torch._foreach_mul_(params, 1.0 - lr * group["weight_decay"])
    directions = torch._foreach_mul(momenta, beta1)
    torch._foreach_add_(directions, grads, alpha=1.0 - beta1)
    torch._foreach_sign_(directions)
    torch._foreach_add_(params, directions, alpha=-lr)
    torch._foreach_mul_(momenta, beta2)
    torch._foreach_add_(momenta, grads, alpha=1.0 - beta2)
