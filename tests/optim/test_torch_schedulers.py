import pytest
import torch

from rfdetr_train.config import SGDConfig, TorchSchedulerConfig
from rfdetr_train.errors import UserError
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.optim.torch_schedulers import build_torch_scheduler, per_group

T = "torch.optim.lr_scheduler."


def make_optimizer(num_groups=2):
    """Groups at rates 1, 2, ..."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": float(i + 1)} for i in range(num_groups)]
    return torch.optim.SGD(groups)


def trace(warmup_steps, target, steps=12, num_groups=2, **args):
    """The rates of the first group, step by step; the second group must stay at twice as much."""
    optimizer = make_optimizer(num_groups)
    config = TorchSchedulerConfig(_target_=T + target, args=args)
    scheduler = build_torch_scheduler(optimizer, config, warmup_steps=warmup_steps)
    rates = []
    for _ in range(steps):
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert second == pytest.approx(2 * first)
        rates.append(first)
        optimizer.step()
        scheduler.step()
    return rates


def child(target, **args):
    return {"_target_": T + target, **args}


WARM = [0.25, 0.5, 0.75, 1.0]  # four steps of warmup


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        ("StepLR", {"step_size": 2, "gamma": 0.5}, [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]),
        ("MultiStepLR", {"milestones": [2, 3], "gamma": 0.5}, [1, 1, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]),
        ("ConstantLR", {"factor": 0.5, "total_iters": 2}, [0.5, 0.5, 1, 1, 1, 1, 1, 1]),
        ("ExponentialLR", {"gamma": 0.5}, [2.0**-i for i in range(8)]),
        ("PolynomialLR", {"total_iters": 4}, [1, 0.75, 0.5, 0.25, 0, 0, 0, 0]),
        ("CosineAnnealingLR", {"T_max": 4}, [1, 0.853553, 0.5, 0.146447, 0, 0.146447, 0.5, 0.853553]),
        ("CosineAnnealingWarmRestarts", {"T_0": 2}, [1, 0.5, 1, 0.5, 1, 0.5, 1, 0.5]),
    ],
)
def test_warmup_goes_exactly_in_front(target, args, expected):
    """The schedule starts anew at step W: the same numbers as without warmup, W steps later."""
    assert trace(0, target, steps=8, **args) == pytest.approx(expected, abs=1e-6)
    assert trace(4, target, **args) == pytest.approx(WARM + expected, abs=1e-6)


def test_warmup_of_one_step_is_full_at_once():
    expected = [1.0, 1.0, 0.5, 0.25]
    assert trace(1, "ExponentialLR", steps=4, gamma=0.5) == pytest.approx(expected)


def test_sequences_are_flattened_behind_warmup():
    inner = [child("ConstantLR", factor=0.5, total_iters=99), child("ExponentialLR", gamma=0.5)]

    assert trace(4, "SequentialLR", schedulers=inner, milestones=[3]) == pytest.approx(
        [*WARM, 0.5, 0.5, 0.5, 1.0, 0.5, 0.25, 0.125, 0.0625]
    )


@pytest.mark.parametrize("warmup_steps", [0, 4])
def test_nested_sequences_are_flattened(warmup_steps):
    """The inner one as the first child and as a later one; torch gets both wrong."""
    constants = [child("ConstantLR", factor=f, total_iters=99) for f in (0.5, 0.25, 0.125)]
    first = child("SequentialLR", schedulers=constants[:2], milestones=[2])
    later = child("SequentialLR", schedulers=constants[1:], milestones=[2])
    front = WARM if warmup_steps else []

    found = trace(warmup_steps, "SequentialLR", schedulers=[first, constants[2]], milestones=[4])
    assert found[: len(front) + 6] == pytest.approx([*front, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125])
    found = trace(warmup_steps, "SequentialLR", schedulers=[constants[0], later], milestones=[2])
    assert found[: len(front) + 6] == pytest.approx([*front, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125])


def test_a_child_that_a_milestone_overtakes_is_never_reached():
    constants = [child("ConstantLR", factor=f, total_iters=99) for f in (0.5, 0.25, 0.125)]
    inner = child("SequentialLR", schedulers=constants[:2], milestones=[5])

    assert trace(0, "SequentialLR", steps=7, schedulers=[inner, constants[2]], milestones=[3]) == pytest.approx(
        [0.5, 0.5, 0.5, 0.125, 0.125, 0.125, 0.125]
    )


SEQUENCE = child("SequentialLR", schedulers=[child("ConstantLR"), child("ConstantLR")], milestones=[2])
REFUSED = [
    (4, "ChainedScheduler", {"schedulers": [child("ConstantLR")]}, "ChainedScheduler behind warmup.*NotImplemented"),
    (4, "OneCycleLR", {"total_steps": 9}, "OneCycleLR behind warmup.*rewrites"),
    (4, "CyclicLR", {"base_lr": 0.1, "max_lr": 1.0}, "CyclicLR behind warmup.*jumps"),
    (4, "MultiplicativeLR", {"lr_lambda": "math.cos"}, "MultiplicativeLR behind warmup.*once too often"),
    (0, "SequentialLR", {"schedulers": [child("ReduceLROnPlateau")], "milestones": []}, "waits for a metric"),
    (0, "SequentialLR", {"schedulers": [child("ConstantLR")], "milestones": [1, 2]}, "1 schedulers want 0 milestones"),
    (0, "ChainedScheduler", {"schedulers": [SEQUENCE]}, "SequentialLR inside ChainedScheduler.*overwrites"),
    (0, "ReduceLROnPlateau", {}, "wants scheduler.interval=evaluation"),
    (0, "StepLR", {"stepsize": 2}, "StepLR: refuses its arguments.*stepsize"),
    (0, "NoSuchLR", {}, "cannot be imported"),
    (0, "LambdaLR", {"lr_lambda": ["math.cos"] * 3}, r"3 entries for 2 parameter groups"),
]


@pytest.mark.parametrize(("warmup_steps", "target", "args", "message"), REFUSED)
def test_what_torch_gets_wrong_is_refused_with_the_reason(warmup_steps, target, args, message):
    with pytest.raises(UserError, match=message):
        trace(warmup_steps, target, **args)


def test_a_class_that_is_no_scheduler_is_refused():
    config = TorchSchedulerConfig(_target_="torch.nn.Linear")
    with pytest.raises(UserError, match="no scheduler class"):
        build_torch_scheduler(make_optimizer(), config, warmup_steps=0)


class TestReasons:
    """The reasons given for the refusals, as torch itself shows them."""

    def sequence(self, *schedulers, milestones):
        optimizer = make_optimizer(1)
        built = [make(optimizer) for make in schedulers]
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, built, milestones)
        rates = []
        for _ in range(6):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return rates

    constant = staticmethod(lambda o: torch.optim.lr_scheduler.ConstantLR(o, 0.5, 3))

    def test_a_chain_or_sequence_at_a_milestone_is_not_implemented(self):
        chain = lambda o: torch.optim.lr_scheduler.ChainedScheduler([self.constant(o)], optimizer=o)  # noqa: E731
        with pytest.raises(NotImplementedError):
            self.sequence(self.constant, chain, milestones=[2])

    def test_one_cycle_rewrites_the_rates_before_it(self):
        one_cycle = lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 2.0, 9, cycle_momentum=False)  # noqa: E731
        assert self.sequence(self.constant, one_cycle, milestones=[3])[:3] == pytest.approx([0.04] * 3)

    def test_multiplicative_multiplies_at_its_milestone(self):
        halve = lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, lambda _: 0.5)  # noqa: E731
        flat = lambda o: torch.optim.lr_scheduler.ConstantLR(o, 1.0, 0)  # noqa: E731
        assert self.sequence(flat, halve, milestones=[3]) == [1.0, 1.0, 1.0, 0.5, 0.25, 0.125]


def test_one_cycle_keeps_the_rates_of_the_groups():
    rates = trace(0, "OneCycleLR", total_steps=12, pct_start=0.5, cycle_momentum=False)
    assert max(rates) == pytest.approx(1.0)


def test_functions_come_by_dotted_path():
    assert trace(0, "LambdaLR", steps=3, lr_lambda="math.exp2") == [1.0, 2.0, 4.0]
    assert trace(0, "LambdaLR", steps=2, lr_lambda=["math.exp2", "math.exp2"]) == [1.0, 2.0]


def test_a_nested_target_that_is_no_scheduler_is_called():
    half = {"_target_": "fractions.Fraction", "numerator": 1, "denominator": 2}
    assert trace(0, "ExponentialLR", steps=3, gamma=half) == [1.0, 0.5, 0.25]


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
