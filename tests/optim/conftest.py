"""A small module with every kind of role, and gradients that any grouping of it receives alike."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from rfdetr_train.roles import ParameterRole

ROLES = {
    "embed": ParameterRole("encoder", "embedding", 4),
    "blocks.0.weight": ParameterRole("encoder", "weight", 3, hidden_matrix=True),
    "blocks.0.bias": ParameterRole("encoder", "bias", 3),
    "blocks.1.weight": ParameterRole("encoder", "weight", 2, hidden_matrix=True),
    "blocks.1.bias": ParameterRole("encoder", "bias", 2),
    "scale": ParameterRole("encoder", "scale", 2),
    "norm.weight": ParameterRole("encoder", "norm", 0),
    "norm.bias": ParameterRole("encoder", "norm", 0),
    "projector.weight": ParameterRole("projector", "weight"),
    "projector.bias": ParameterRole("projector", "bias"),
    "decoder.weight": ParameterRole("decoder", "weight", hidden_matrix=True),
    "decoder.bias": ParameterRole("decoder", "bias"),
    "head.weight": ParameterRole("head", "weight"),
    "head.bias": ParameterRole("head", "bias"),
}


class Toy(nn.Module):
    """L = 3: the embeddings lie under 4 layers, two blocks under 3 and 2."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(1, 4, 8))
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(8))
        self.norm = nn.LayerNorm(8)
        self.projector = nn.Linear(8, 6)
        self.decoder = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def parameter_roles(self) -> dict[str, ParameterRole]:
        return ROLES


@pytest.fixture
def make_toy() -> Callable[[], Toy]:
    """Makes the same toy every time."""

    def make() -> Toy:
        torch.manual_seed(3)
        return Toy()

    return make


@pytest.fixture
def give_gradients() -> Callable[[nn.Module, int], None]:
    """Sets the gradients of a step: a function of the step and of the parameter's place in the module alone."""

    def give(module: nn.Module, step: int) -> None:
        generator = torch.Generator().manual_seed(1000 + step)
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.1

    return give
