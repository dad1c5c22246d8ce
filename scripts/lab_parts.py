"""What the optimizer lab works with: optimizers for one number at a time, and a network that learns in seconds."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Update = Callable[[float, float, float, dict[str, float]], float]
"""(weight, gradient, learning rate, state) -> the new weight; the state is changed in place."""


def momentum_update(nesterov: bool, mu: float = 0.9) -> Update:
    """torch's form: the rate stands outside the velocity, v = mu v + g and w -= lr v."""

    def update(weight: float, grad: float, lr: float, state: dict[str, float]) -> float:
        velocity = state["v"] = mu * state["v"] + grad if "v" in state else grad
        return weight - lr * (grad + mu * velocity if nesterov else velocity)

    return update


def velocity_update(weight: float, grad: float, lr: float, state: dict[str, float]) -> float:
    """The textbook's form: the rate inside the velocity, v = mu v + lr g and w -= v; a drop acts with a delay."""
    velocity = state["v"] = 0.9 * state.get("v", 0.0) + lr * grad
    return weight - velocity


def adamw_update(
    weight: float, grad: float, lr: float, state: dict[str, float], decay: float = 0.1, eps: float = 1e-8
) -> float:
    """arXiv 1711.05101, algorithm 2, with betas 0.9 and 0.999."""
    t = state["t"] = state.get("t", 0) + 1
    first = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * grad
    second = state["s"] = 0.999 * state.get("s", 0.0) + 0.001 * grad * grad
    corrected = (first / (1 - 0.9**t)) / (math.sqrt(second / (1 - 0.999**t)) + eps)
    return weight * (1 - lr * decay) - lr * corrected


def sign_momentum_update(weight: float, grad: float, lr: float, state: dict[str, float], decay: float = 0.1) -> float:
    """Lion (arXiv 2302.06675), with betas 0.9 and 0.99."""
    momentum = state.get("m", 0.0)
    direction = 0.9 * momentum + 0.1 * grad
    state["m"] = 0.99 * momentum + 0.01 * grad
    return weight * (1 - lr * decay) - lr * ((direction > 0) - (direction < 0))


def make_network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """8 - 32 - LayerNorm - tanh - 1: 385 parameters, the same ones every time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)


def loss_of(network: nn.Module, step: int) -> Tensor:
    """Squared error on 16 fresh points of a smooth function with noise, a function of the step alone."""
    generator = torch.Generator().manual_seed(step)
    dtype = next(network.parameters()).dtype
    points = torch.randn(16, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(16, 1, generator=generator, dtype=torch.float64)
    target = torch.sin(points.sum(dim=1, keepdim=True)) + 0.3 * noise
    return nn.functional.mse_loss(network(points.to(dtype)), target.to(dtype))


def train(network: nn.Module, optimizer: Optimizer, steps: int, first: int = 0) -> None:
    """Steps `first`, `first` + 1, ... of the one run that this seed has."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(network, step).backward()
        optimizer.step()


def largest_gap(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between two copies' parameters."""
    return max((p - q).abs().max().item() for p, q in zip(one.parameters(), other.parameters(), strict=True))
