"""What a file holds for each parameter, what an optimizer wants, and how many bytes it will keep."""

import pytest
import torch
from optimization_parts import ROLES, Parts, assert_equal_moments, assert_equal_weights
from torch import nn

from rfdetr_train.checkpoint.regroup import load_optimizer_state
from rfdetr_train.checkpoint.saved_optimizer import read_saved, state_bytes, with_names
from rfdetr_train.config import AdamWConfig, OptimizerConfig
from rfdetr_train.errors import UserError
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.roles import ParameterRole
from rfdetr_train.schema import OPTIMIZERS

LAYER_ROLES = {"layer.weight": ParameterRole("decoder", "weight", hidden_matrix=True),
               "layer.bias": ParameterRole("decoder", "bias")}  # fmt: skip
WEIGHTS, BIAS = 3 * 5, 3
PARAMETERS = 2
COUNTER = 4  # bytes of a step number


def test_the_probe_of_the_expected_state_leaves_no_trace():
    """Neither hooks, nor the scheduler's watch on `step`, nor the parameters notice it."""
    first, second = Parts(), Parts()
    first.train(range(3))
    calls = []
    second.optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    second.optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    before = [parameter.detach().clone() for parameter in second.module.parameters()]
    _, optimizer_state, _ = first.saved()

    load_optimizer_state(second.optimizer, read_saved(optimizer_state, second.optimizer))

    assert calls == []
    assert not getattr(second.optimizer, "_opt_called", False)
    assert all(torch.equal(p, q) for p, q in zip(second.module.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in second.module.parameters())


class TestWithoutNames:
    def unnamed(self, parts):
        weights, optimizer_state, scheduler_state = parts.saved()
        for group in optimizer_state["param_groups"]:
            del group["param_names"], group["group_name"]
        del scheduler_state["kind"]
        return weights, optimizer_state, scheduler_state

    def test_one_group_per_parameter_is_rebuilt_from_the_order(self):
        order = ["head.weight", "head.bias", "encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]
        whole = Parts(AdamWConfig(merge_groups=False))
        expected = whole.train(range(15))
        first = Parts(AdamWConfig(merge_groups=False), order=order)
        first.train(range(7))
        second = Parts()

        weights, optimizer_state, scheduler_state = self.unnamed(first)
        named = with_names(optimizer_state, [[name] for name in order])
        account = second.resume((weights, named, scheduler_state))

        assert sorted(account.moved) == sorted(ROLES)
        assert_equal_moments(second, first)
        assert second.train(range(7, 15)) == expected[7:]
        assert_equal_weights(second, whole)

    def test_groups_of_other_numbers_or_with_names_pass_untouched(self):
        single = [[name] for name in ROLES]
        _, merged, _ = self.unnamed(Parts())
        assert with_names(merged, single) is merged
        _, unnamed, _ = self.unnamed(Parts(AdamWConfig(merge_groups=False)))
        assert with_names(unnamed, single[1:]) is unnamed
        _, named, _ = Parts(AdamWConfig(merge_groups=False)).saved()
        assert with_names(named, single) is named

    def test_the_same_groups_load_by_position(self):
        first, second = Parts(), Parts()
        first.train(range(7))
        second.resume(self.unnamed(first))
        assert_equal_moments(second, first)

    def test_other_groups_are_refused_with_both_numbers(self):
        first = Parts(AdamWConfig(merge_groups=False))
        with pytest.raises(UserError, match="6 parameters in 6 groups without names, this run 6 in 4"):
            Parts().resume(self.unnamed(first))


def test_joined_parameters_take_their_moments_from_several():
    """`encoder.weight` (5, 4) from rows 0-1 and 2-4 under names of their own, in groups of their own."""
    first = Parts(AdamWConfig(merge_groups=False))
    first.train(range(7))
    weights, state, scheduler_state = first.saved()
    whole = state["state"].pop(0)
    state["state"] |= {
        100: {key: value[:2] if value.ndim else value for key, value in whole.items()},
        101: {key: value[2:] if value.ndim else value for key, value in whole.items()},
    }
    group = state["param_groups"][0]
    state["param_groups"][:1] = [
        {**group, "params": [100], "param_names": ["old.top"]},
        {**group, "params": [101], "param_names": ["old.rest"]},
    ]
    for key in ("base_lrs", "_last_lr", "lr_lambdas"):
        scheduler_state[key].insert(0, scheduler_state[key][0])
    sources = {"encoder.weight": ["old.top", "old.rest"]}

    second = Parts()
    account = second.resume((weights, state, scheduler_state), sources=sources)
    assert_equal_moments(second, first)
    assert account.dropped == {}

    state["state"][101]["step"] = torch.tensor(3.0)
    with pytest.raises(UserError, match=r"encoder.weight joins parameters whose step differs: \[7.0, 3.0\]"):
        Parts().resume((weights, state, scheduler_state), sources=sources)
    del state["state"][101]
    assert Parts().resume((weights, state, scheduler_state), sources=sources).new == ["encoder.weight"]


def built(name: str, **keys: object) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.ModuleDict({"layer": nn.Linear(5, 3)})
    section: OptimizerConfig = OPTIMIZERS[name](**keys)
    groups = annotate(list(module.named_parameters()), LAYER_ROLES, section)
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
def test_bytes_to_keep_in_closed_form(name: str, keys: dict[str, object], floats: int, counters: int) -> None:
    _, optimizer = built(name, **keys)
    assert state_bytes(optimizer) == 4 * floats + COUNTER * counters
    assert not optimizer.state  # nothing is left of the trial


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ("custom", "lbfgs")])
def test_they_are_as_many_as_after_a_step(name: str) -> None:
    module, optimizer = built(name)
    expected = state_bytes(optimizer)
    module["layer"](torch.ones(2, 5)).sum().backward()
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert sum(value.nbytes for value in kept) == expected
