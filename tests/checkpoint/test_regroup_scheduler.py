"""Rates and scheduler state under other groups, other rates and other frozen parts."""

import re

import pytest
from optimization_parts import ROLES, SAME_RATES, SCHEDULES, Parts, assert_equal_weights, torch_schedule

from rfdetr_train.checkpoint.regroup import load_optimizer_state, regroup_scheduler_state
from rfdetr_train.checkpoint.saved_optimizer import read_saved
from rfdetr_train.config import AdamWConfig, SGDConfig
from rfdetr_train.errors import UserError
from rfdetr_train.optim.schedulers import build_scheduler


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


@pytest.mark.parametrize("schedule", ["sequential", "epoch", "plateau"])
def test_a_thawed_part_has_its_rate_under_stepped_schedules_too(schedule):
    frozen, free = (Parts(None, SCHEDULES[schedule], frozen=names) for names in (["encoder"], []))
    for parts in (frozen, free):
        parts.train(range(7))
    thawed = Parts(None, SCHEDULES[schedule])

    thawed.resume(frozen.saved())

    for found, wanted in zip(thawed.train(range(7, 15)), free.train(range(7, 15)), strict=True):
        assert found == pytest.approx(wanted, rel=1e-13)


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
