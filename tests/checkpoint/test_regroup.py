"""Moments by parameter name: a resumed run equals the uninterrupted one, also under other groups and optimizers."""

from copy import deepcopy

import pytest
import torch
from optimization_parts import ROLES, SAME_RATES, SCHEDULES, Parts, assert_equal_moments, assert_equal_weights

from rfdetr_train.checkpoint.regroup import load_optimizer_state, restore_optimization
from rfdetr_train.checkpoint.saved_optimizer import read_saved
from rfdetr_train.config import (
    AdafactorConfig,
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    LBFGSConfig,
    LionConfig,
    MuonConfig,
    NAdamConfig,
    ParameterRule,
    RAdamConfig,
    RMSpropConfig,
    SGDConfig,
)

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


def test_loaded_moments_are_copies():
    first, second = Parts(), Parts()
    first.train(range(3))
    state = first.optimizer.state_dict()
    kept = deepcopy(state)
    load_optimizer_state(second.optimizer, read_saved(state, second.optimizer))
    second.train(range(3, 5))
    assert all(torch.equal(state["state"][i]["exp_avg"], kept["state"][i]["exp_avg"]) for i in kept["state"])


def test_a_rule_that_splits_a_group():
    first = Parts()
    first.train(range(7))
    second = Parts(AdamWConfig(rules=[ParameterRule("head.bias", lr=1e-2)]))

    second.resume(first.saved())

    share = first.rates()["head.weight"] / 1e-4
    assert second.rates()["head.bias"] == pytest.approx(1e-2 * share, rel=1e-13)
    assert_equal_moments(second, first)
