"""What an optimizer will keep, against the closed form and against what it keeps after a step."""

import pytest
import torch
from torch import nn

from rfdetr_train.checkpoint.saved_optimizer import state_bytes
from rfdetr_train.config import OptimizerConfig
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.roles import ParameterRole
from rfdetr_train.schema import OPTIMIZERS

WEIGHTS, BIAS = 3 * 5, 3
PARAMETERS = 2
COUNTER = 4  # bytes of a step number
ROLES = {"layer.weight": ParameterRole("decoder", "weight", hidden_matrix=True),
         "layer.bias": ParameterRole("decoder", "bias")}  # fmt: skip


def built(name: str, **keys: object) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.ModuleDict({"layer": nn.Linear(5, 3)})
    section: OptimizerConfig = OPTIMIZERS[name](**keys)
    groups = annotate(list(module.named_parameters()), ROLES, section)
    return module, build_optimizer(section, groups, torch.device("cpu"))


@pytest.mark.parametrize(("name", "keys", "floats", "counters"), [
    ("sgd", {"momentum": 0.0, "nesterov": False}, 0, 0),
    ("sgd", {"momentum": 0.9}, WEIGHTS + BIAS, 0),
    ("lion", {}, WEIGHTS + BIAS, 0),
    ("adamw", {}, 2 * (WEIGHTS + BIAS), PARAMETERS),
    ("adamw", {"amsgrad": True}, 3 * (WEIGHTS + BIAS), PARAMETERS),
    ("adafactor", {}, 3 + 5 + BIAS, PARAMETERS),  # a row and a column in the place of a matrix
    ("lbfgs", {"history_size": 4}, (2 + 8) * (WEIGHTS + BIAS), 0),
])  # fmt: skip
def test_closed_form(name: str, keys: dict[str, object], floats: int, counters: int) -> None:
    _, optimizer = built(name, **keys)
    assert state_bytes(optimizer) == 4 * floats + COUNTER * counters
    assert not optimizer.state  # nothing is left of the trial


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ("custom", "lbfgs")])
def test_as_much_as_after_a_step(name: str) -> None:
    module, optimizer = built(name)
    expected = state_bytes(optimizer)
    module["layer"](torch.ones(2, 5)).sum().backward()
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert sum(value.nbytes for value in kept) == expected
