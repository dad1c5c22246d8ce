import pytest

from rfdetr_train.config import SGDConfig
from rfdetr_train.errors import UserError
from rfdetr_train.optim.group_lists import per_group
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate


@pytest.fixture
def module(make_toy):
    return make_toy()


@pytest.fixture
def optimizer(module):
    """8 groups over 14 parameters."""
    return build_optimizer(
        SGDConfig(), annotate(module.named_parameters(), module.parameter_roles(), SGDConfig()), "cpu"
    )


@pytest.fixture
def order(module):
    return [name for name, _ in module.named_parameters()]


def test_one_entry_per_group_stays(optimizer):
    assert per_group("key", list(range(8)), optimizer) == list(range(8))


@pytest.mark.parametrize("length", [1, 7, 9, 13, 15])
def test_another_length_is_refused_with_both_numbers(optimizer, order, length):
    with pytest.raises(UserError, match=rf"{length} entries for 8 parameter groups \(14 parameters\)"):
        per_group("scheduler.args.lr_lambda", [1.0] * length, optimizer, order)


def test_one_entry_per_parameter_is_collapsed(optimizer, order):
    groups = optimizer.param_groups
    by_name = {name: index for index, group in enumerate(groups) for name in group["param_names"]}

    assert per_group("key", [by_name[name] for name in order], optimizer, order) == list(range(8))


def test_without_an_order_it_is_refused(optimizer):
    with pytest.raises(UserError, match="14 entries for 8"):
        per_group("key", [1.0] * 14, optimizer)


def test_names_that_do_not_train_are_passed_over(optimizer, order):
    assert per_group("key", [1.0] * 14, optimizer, ["frozen", *order]) == [1.0] * 8


def test_entries_that_differ_within_a_group_are_refused(optimizer, order):
    values = [0.0] * 14
    values[order.index("norm.bias")] = 1.0
    with pytest.raises(UserError, match=r"norm.weight and norm.bias differ.*merge_groups=false"):
        per_group("key", values, optimizer, order)


def test_functions_agree_when_their_values_do(optimizer, order):
    def maker(factor):
        return lambda step: factor**step

    assert len(per_group("lr_lambda", [maker(0.5) for _ in order], optimizer, order)) == 8
    functions = [maker(0.5) for _ in order]
    functions[order.index("decoder.bias")] = maker(0.25)
    with pytest.raises(UserError, match="decoder"):
        per_group("lr_lambda", functions, optimizer, order)
