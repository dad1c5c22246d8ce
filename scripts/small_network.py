"""A network of 385 parameters and a regression that it can learn in seconds, the same in every run."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


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
