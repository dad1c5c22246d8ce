import io
import re
from copy import deepcopy

import pytest
import torch
from torch import nn

from rfdetr_train.checkpoint.regroup import load_optimizer_state, restore_optimization
from rfdetr_train.checkpoint.regroup_scheduler import regroup_scheduler_state
from rfdetr_train.checkpoint.saved_optimizer import read_saved, with_names
from rfdetr_train.config import (
    AdafactorConfig,
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    CosineScheduleConfig,
    LBFGSConfig,
    LionConfig,
    MuonConfig,
    NAdamConfig,
    ParameterRule,
    RAdamConfig,
    RMSpropConfig,
    SGDConfig,
    StepScheduleConfig,
    TorchSchedulerConfig,
)
from rfdetr_train.errors import UserError
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.optim.schedulers import build_scheduler
from rfdetr_train.roles import ParameterRole

T = "torch.optim.lr_scheduler."
COSINE = CosineScheduleConfig(min_factor=0.1)
ROLES = {
    "encoder.weight": ParameterRole("encoder", "weight", 1, hidden_matrix=True),
    "encoder.bias": ParameterRole("encoder", "bias", 1),
    "decoder.weight": ParameterRole("decoder", "weight", hidden_matrix=True),
    "decoder.bias": ParameterRole("decoder", "bias"),
    "head.weight": ParameterRole("head", "weight"),
    "head.bias": ParameterRole("head", "bias"),
}

SAME_RATES = AdamWConfig(encoder_lr=1e-4, layer_decay=1.0, component_decay=1.0)


class Parts:
    """A module of six tensors, its optimizer and its scheduler; gradients depend on step and name alone."""

    def __init__(self, config=None, schedule=COSINE, *, classes=3, frozen=(), warmup_steps=4, order=None):
        torch.manual_seed(0)
        self.module = nn.ModuleDict(
            {"encoder": nn.Linear(4, 5), "decoder": nn.Linear(5, 5), "head": nn.Linear(5, classes)}
        )
        for name in frozen:
            self.module[name].requires_grad_(False)
        named = dict(self.module.named_parameters())
        named = [(name, named[name]) for name in order or named]
        config = config or AdamWConfig()
        self.optimizer = build_optimizer(config, annotate(named, ROLES, config), "cpu")
        self.scheduler = build_scheduler(
            self.optimizer, schedule, warmup_steps=warmup_steps, total_steps=30, steps_per_epoch=5
        )

    def train(self, steps):
        """The rates used, by parameter name."""
        rates = []
        for step in steps:
            for name, parameter in self.module.named_parameters():
                generator = torch.Generator().manual_seed(step * 100 + list(ROLES).index(name))
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            rates.append(self.rates())
            self.optimizer.step(lambda: torch.tensor(1.0))
            self.scheduler.step()
            if (step + 1) % 5 == 0:
                self.scheduler.epoch_end()
                self.scheduler.evaluated({"AP": 0.5})
        return rates

    def rates(self):
        return {name: g["lr"] for g in self.optimizer.param_groups for name in g["param_names"]}

    def moments(self):
        return {n: self.optimizer.state[p] for n, p in self.module.named_parameters() if p in self.optimizer.state}

    def saved(self):
        """Model, optimizer and scheduler through a file that loads with `weights_only=True`."""
        buffer = io.BytesIO()
        states = (self.module.state_dict(), self.optimizer.state_dict(), self.scheduler.state_dict())
        torch.save(states, buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=True)

    def resume(self, saved, **more):
        weights, optimizer_state, scheduler_state = saved
        self.module.load_state_dict(weights)
        return restore_optimization(self.optimizer, self.scheduler, optimizer_state, scheduler_state, **more)


def assert_equal_weights(one, other):
    for (name, first), (_, second) in zip(one.module.named_parameters(), other.module.named_parameters(), strict=True):
        assert torch.equal(first, second), name


def assert_equal_moments(one, other, names=ROLES):
    for name in names:
        first, second = one.moments()[name], other.moments()[name]
        assert set(first) == set(second)
        assert all(torch.equal(torch.as_tensor(first[key]), torch.as_tensor(second[key])) for key in first), name


def torch_schedule(target, interval="step", **args):
    return TorchSchedulerConfig(_target_=T + target, args=args, interval=interval)


OPTIMIZERS = [
    AdamWConfig(),
    AdamWConfig(fused=False, amsgrad=True),
    AdamConfig(),
    SGDConfig(nesterov=True),
    AdagradConfig(),
    RMSpropConfig(momentum=0.5, centered=True),
    NAdamConfig(),
    RAdamConfig(),
    AdafactorConfig(),
    MuonConfig(),
    LionConfig(),
    LBFGSConfig(lr=1e-3, weight_decay=0.0),
]
SCHEDULES = {
    "step": StepScheduleConfig(drop_epochs=[2.0]),
    "cosine": COSINE,
    "chainable": torch_schedule("CosineAnnealingLR", T_max=26, eta_min=1e-6),
    "sequential": torch_schedule(
        "SequentialLR",
        schedulers=[{"_target_": T + "ExponentialLR", "gamma": 0.9}, {"_target_": T + "StepLR", "step_size": 2}],
        milestones=[3],
    ),
    "epoch": torch_schedule("ExponentialLR", interval="epoch", gamma=0.5),
    "plateau": torch_schedule("ReduceLROnPlateau", interval="evaluation", patience=0, factor=0.5),
}


@pytest.mark.parametrize("stop", [3, 11, 15], ids=["in warmup", "in mid-epoch", "at an epoch's end"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("config", OPTIMIZERS, ids=lambda config: config.name)
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(config, schedule, stop):
    whole = Parts(config, SCHEDULES[schedule])
    expected = whole.train(range(20))
    first = Parts(config, SCHEDULES[schedule])
    first.train(range(stop))

    second = Parts(config, SCHEDULES[schedule])
    account = second.resume(first.saved())

    assert second.train(range(stop, 20)) == expected[stop:]
    assert_equal_weights(second, whole)
    assert (sorted(account.moved), account.dropped, account.new) == (sorted(ROLES), {}, [])


@pytest.mark.parametrize("target", ["OneCycleLR", "CyclicLR"])
def test_schedules_that_move_the_momentum_too(target):
    args = {"OneCycleLR": {"total_steps": 30}, "CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-2, "step_size_up": 3}}
    schedule = torch_schedule(target, **args[target])
    whole, first, second = (Parts(SGDConfig(), schedule, warmup_steps=0) for _ in range(3))
    expected = whole.train(range(20))
    first.train(range(8))

    second.resume(first.saved())

    assert second.train(range(8, 20)) == expected[8:]
    assert_equal_weights(second, whole)


REGROUPED = {
    "one group per parameter -> merged": (AdamWConfig(merge_groups=False), AdamWConfig()),
    "merged -> one group per parameter": (AdamWConfig(), AdamWConfig(merge_groups=False)),
    "other decay": (AdamWConfig(no_decay="reference"), AdamWConfig(no_decay="none")),
    "fused -> not": (AdamWConfig(fused=True), AdamWConfig(fused=False)),
    "not -> fused": (AdamWConfig(fused=False), AdamWConfig(fused=True)),
    "Adam -> AdamW": (AdamConfig(merge_groups=False), AdamWConfig()),
}


@pytest.mark.parametrize("schedule", ["cosine", "sequential", "epoch", "plateau"])
@pytest.mark.parametrize("change", REGROUPED)
def test_regrouped_moments_are_equal_by_name_and_rates_go_on(change, schedule):
    before, after = REGROUPED[change]
    first = Parts(before, SCHEDULES[schedule])
    first.train(range(7))
    expected = Parts(after, SCHEDULES[schedule]).train(range(20))

    second = Parts(after, SCHEDULES[schedule])
    account = second.resume(first.saved())

    assert_equal_moments(second, first)
    assert sorted(account.moved) == sorted(ROLES)
    assert second.train(range(7, 20)) == expected[7:]


@pytest.mark.parametrize("merge", [True, False])
def test_regrouping_trains_on_to_the_bit(merge):
    """From merged to single groups or back in mid-run: the same weights as the run that never changed."""
    whole = Parts(AdamWConfig(merge_groups=merge))
    whole.train(range(20))
    first = Parts(AdamWConfig(merge_groups=merge))
    first.train(range(7))

    second = Parts(AdamWConfig(merge_groups=not merge))
    second.resume(first.saved())
    second.train(range(7, 20))

    assert_equal_weights(second, whole)


def test_permuted_groups():
    """torch's own load takes these without a word and gives each parameter another one's moments."""
    first = Parts(AdamWConfig(merge_groups=False))
    first.train(range(7))
    second = Parts(AdamWConfig(merge_groups=False), order=list(reversed(ROLES)))
    assert second.optimizer.param_groups[0]["param_names"] == ["head.bias"]

    second.resume(first.saved())

    assert_equal_moments(second, first)
    assert second.rates() == first.rates()


def test_fused_saved_as_null():
    first = Parts(AdamWConfig(fused=False))
    first.train(range(3))
    weights, optimizer_state, scheduler_state = first.saved()
    for group in optimizer_state["param_groups"]:
        group["fused"] = None

    second = Parts(AdamWConfig(fused=True))
    second.resume((weights, optimizer_state, scheduler_state))

    assert all(group["fused"] is True for group in second.optimizer.param_groups)
    second.train(range(3, 5))


def test_the_present_hyperparameters_win():
    """Rates keep the share of the initial one that the schedule has reached."""
    for schedule in ("cosine", "sequential", "epoch"):
        first = Parts(AdamWConfig(), SCHEDULES[schedule])
        first.train(range(7))
        changed = AdamWConfig(lr=5e-4, encoder_lr=3e-4, weight_decay=0.5, betas=[0.8, 0.9], eps=1e-5)
        second = Parts(changed, SCHEDULES[schedule])
        expected = Parts(changed, SCHEDULES[schedule]).train(range(12))

        second.resume(first.saved())

        for group in second.optimizer.param_groups:
            assert (group["betas"], group["eps"]) == ((0.8, 0.9), 1e-5)
            assert group["weight_decay"] in (0.5, 0.0)
        for found, wanted in zip(second.train(range(7, 12)), expected[7:], strict=True):
            assert found == pytest.approx(wanted, rel=1e-13)


def test_frozen_then_trained_is_new_and_trained_then_frozen_is_dropped():
    frozen, free = Parts(frozen=["encoder"]), Parts()
    for parts in (frozen, free):
        parts.train(range(7))
    thawed, cooled = Parts(), Parts(frozen=["encoder"])

    account = thawed.resume(frozen.saved())
    assert account.new == ["encoder.weight", "encoder.bias"]
    assert thawed.rates() == free.rates()
    assert_equal_moments(thawed, frozen, [name for name in ROLES if not name.startswith("encoder")])

    account = cooled.resume(free.saved())
    assert account.dropped == dict.fromkeys(["encoder.weight", "encoder.bias"], "is not trained here")
    thawed.train(range(7, 9))
    cooled.train(range(7, 9))


@pytest.mark.parametrize("schedule", ["sequential", "epoch", "plateau"])
def test_a_thawed_part_has_its_rate_under_stepped_schedules_too(schedule):
    frozen, free = (Parts(None, SCHEDULES[schedule], frozen=names) for names in (["encoder"], []))
    for parts in (frozen, free):
        parts.train(range(7))
    thawed = Parts(None, SCHEDULES[schedule])

    thawed.resume(frozen.saved())

    for found, wanted in zip(thawed.train(range(7, 15)), free.train(range(7, 15)), strict=True):
        assert found == pytest.approx(wanted, rel=1e-13)


def test_another_number_of_classes_drops_the_heads_state_and_says_so(caplog):
    caplog.set_level("INFO")
    first = Parts(classes=3)
    first.train(range(7))
    second = Parts(classes=8)
    _, optimizer_state, scheduler_state = first.saved()

    account = restore_optimization(second.optimizer, second.scheduler, optimizer_state, scheduler_state)

    assert account.dropped == {
        "head.weight": "exp_avg has shape (3, 5), here (8, 5)",
        "head.bias": "exp_avg has shape (3,), here (8,)",
    }
    assert "optimizer state: 4 moved, 2 dropped, 0 new" in caplog.text
    assert "dropped: 1 tensors (exp_avg has shape (3, 5), here (8, 5))" in caplog.text
    second.train(range(7, 9))


@pytest.mark.parametrize(
    ("before", "after", "dropped"),
    [
        (AdamWConfig(), LionConfig(), None),
        (AdamWConfig(amsgrad=True, fused=False), RAdamConfig(), None),
        (AdamWConfig(), NAdamConfig(), "has no mu_product"),
        (AdamWConfig(), SGDConfig(), "has no momentum_buffer"),
        (AdamWConfig(), SGDConfig(momentum=0.0), "nothing is kept for it here"),
        (LBFGSConfig(lr=1e-3, weight_decay=0.0), AdamWConfig(), "is not trained here"),
        (SAME_RATES, LBFGSConfig(lr=1e-3, weight_decay=0.0), "is no L-BFGS history of the same parameters"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_another_optimizer_takes_the_moments_that_it_shares(before, after, dropped):
    first, second = Parts(before), Parts(after)
    first.train(range(7))

    account = second.resume(first.saved())

    if dropped is None:
        assert sorted(account.moved) == sorted(ROLES)
        for name, moments in second.moments().items():
            assert torch.equal(moments["exp_avg"], first.moments()[name]["exp_avg"])
    else:
        assert account.moved == []
    if dropped and dropped != "is not trained here":
        assert set(account.dropped.values()) == {dropped}
    second.train(range(7, 9))


def test_an_optimizer_without_state_has_nothing_to_account_for():
    first, second = Parts(SGDConfig(momentum=0.0)), Parts(SGDConfig(momentum=0.0))
    first.train(range(3))
    account = second.resume(first.saved())
    assert (account.moved, account.dropped, account.new) == ([], {}, [])


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


def test_loaded_moments_are_copies():
    first, second = Parts(), Parts()
    first.train(range(3))
    state = first.optimizer.state_dict()
    kept = deepcopy(state)
    load_optimizer_state(second.optimizer, read_saved(state, second.optimizer))
    second.train(range(3, 5))
    assert all(torch.equal(state["state"][i]["exp_avg"], kept["state"][i]["exp_avg"]) for i in kept["state"])


class TestOrder:
    """Build the scheduler, load the optimizer, load the scheduler."""

    schedule = SCHEDULES["sequential"]

    def test_building_the_scheduler_after_the_load_goes_wrong(self):
        """The negative control: what `restore_optimization` cannot be made to do, as it takes a built scheduler."""
        expected = Parts(None, self.schedule).train(range(12))
        first = Parts(None, self.schedule)
        first.train(range(6))
        _, optimizer_state, scheduler_state = first.saved()
        second = Parts(None, self.schedule)

        load_optimizer_state(second.optimizer, read_saved(optimizer_state, second.optimizer))
        second.scheduler = build_scheduler(
            second.optimizer, self.schedule, warmup_steps=4, total_steps=30, steps_per_epoch=5
        )
        second.scheduler.load_state_dict(scheduler_state)

        assert second.train(range(6, 12)) != expected[6:]

    def test_the_optimizer_is_loaded_when_the_scheduler_is(self):
        first, second = Parts(None, self.schedule), Parts(None, self.schedule)
        first.train(range(6))
        seen = []
        load = second.scheduler.load_state_dict
        second.scheduler.load_state_dict = lambda state: (seen.append(second.rates()), load(state))

        second.resume(first.saved())

        assert seen == [first.rates()]


class TestSchedulerState:
    """`base_lrs`, `_last_lr`, `lr_lambdas`, `min_lrs`, also inside `_schedulers`."""

    def setup_method(self):
        self.single = Parts(AdamWConfig(merge_groups=False))
        self.merged = Parts(AdamWConfig())
        self.saved = read_saved(self.single.optimizer.state_dict(), self.single.optimizer)

    def regroup(self, state):
        return regroup_scheduler_state(state, self.saved, self.merged.optimizer.param_groups)

    def state(self):
        base = [group["initial_lr"] for group in self.single.optimizer.param_groups]
        last = [lr / 2 for lr in base]
        return {
            "base_lrs": base,
            "_last_lr": last,
            "lr_lambdas": [None] * 6,
            "last_epoch": 7,
            "_schedulers": [{"min_lrs": [1e-9] * 6, "_schedulers": [{"base_lrs": base}]}, {"_last_lr": last}],
        }

    def test_follows_recursively(self):
        groups = self.merged.optimizer.param_groups
        base = [group["initial_lr"] for group in groups]
        assert len(groups) == 4
        assert self.regroup(self.state()) == {
            "base_lrs": base,
            "_last_lr": [lr / 2 for lr in base],
            "lr_lambdas": [None] * 4,
            "last_epoch": 7,
            "_schedulers": [
                {"min_lrs": [1e-9] * 4, "_schedulers": [{"base_lrs": base}]},
                {"_last_lr": [lr / 2 for lr in base]},
            ],
        }

    @pytest.mark.parametrize(
        ("key", "value", "difference"),
        [
            ("_last_lr", 1.0, "has reached 0.5 and 14285.7 of its initial rates"),
            ("lr_lambdas", {"a": 1}, "is None for some of its parameters and {'a': 1} for others"),
            ("min_lrs", 1.0, "is 1e-09 for some of its parameters and 1.0 for others"),
        ],
    )
    def test_entries_that_disagree_within_a_group_are_an_error(self, key, value, difference):
        state = self.state()
        target = state if key in state else state["_schedulers"][0]
        index = list(ROLES).index("decoder.bias")
        target[key] = [*target[key][:index], value, *target[key][index + 1 :]]
        with pytest.raises(UserError, match=re.escape(f"{key} of group 'decoder' {difference}")):
            self.regroup(state)

    def test_groups_of_other_initial_rates_may_become_one(self):
        """What counts is the share that each has reached, here a half."""
        merged = Parts(SAME_RATES)
        groups = merged.optimizer.param_groups
        assert len(groups) < len(self.merged.optimizer.param_groups)
        regrouped = regroup_scheduler_state(self.state(), self.saved, groups)
        assert regrouped["base_lrs"] == [group["initial_lr"] for group in groups]
        assert regrouped["_last_lr"] == pytest.approx([group["initial_lr"] / 2 for group in groups], rel=1e-12)

    def test_a_wrong_number_is_an_error_with_both(self):
        state = self.state()
        state["_schedulers"][1]["_last_lr"] = [1.0] * 5
        with pytest.raises(UserError, match="_last_lr has 5 entries, the optimizer saved with it 6 groups"):
            self.regroup(state)

    def test_rates_of_the_optimizer_that_disagree_are_an_error(self):
        state = self.single.optimizer.state_dict()
        state["param_groups"][3]["lr"] = 1.0
        with pytest.raises(UserError, match="group 'decoder' has reached"):
            load_optimizer_state(self.merged.optimizer, read_saved(state, self.merged.optimizer))


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


def test_a_rule_that_splits_a_group():
    first = Parts()
    first.train(range(7))
    second = Parts(AdamWConfig(rules=[ParameterRule("head.bias", lr=1e-2)]))

    second.resume(first.saved())

    share = first.rates()["head.weight"] / 1e-4
    assert second.rates()["head.bias"] == pytest.approx(1e-2 * share, rel=1e-13)
    assert_equal_moments(second, first)
