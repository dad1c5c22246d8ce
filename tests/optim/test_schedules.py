import math

import pytest

from rfdetr_train.config import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    FlatCosineScheduleConfig,
    LinearScheduleConfig,
    PolynomialScheduleConfig,
    StepScheduleConfig,
    TorchSchedulerConfig,
    WSDScheduleConfig,
)
from rfdetr_train.errors import UserError
from rfdetr_train.optim.schedules import build_schedule

PRESETS = {
    "constant": ConstantScheduleConfig(),
    "step": StepScheduleConfig(drop_epochs=[3.0, 5.0]),
    "cosine": CosineScheduleConfig(min_factor=0.1),
    "linear": LinearScheduleConfig(min_factor=0.1),
    "polynomial": PolynomialScheduleConfig(min_factor=0.1, power=3.0),
    "wsd": WSDScheduleConfig(min_factor=0.1, decay_fraction=0.25),
    "flat_cosine": FlatCosineScheduleConfig(min_factor=0.1, flat_fraction=0.5),
}


def schedule_of(config, warmup_steps=0, total_steps=100, steps_per_epoch=10):
    return build_schedule(config, warmup_steps=warmup_steps, total_steps=total_steps, steps_per_epoch=steps_per_epoch)


def test_warmup_and_cosine_by_hand():
    """Peak 3e-3, W = 40, T = 800, floor 0.1; step 420 is half way, where the cosine is at the mean of 1 and 0.1."""
    schedule = schedule_of(PRESETS["cosine"], warmup_steps=40, total_steps=800)

    rates = [3e-3 * schedule(step) for step in (0, 39, 40, 420, 800)]

    assert rates == pytest.approx([7.5e-5, 3e-3, 3e-3, 1.65e-3, 3e-4], rel=1e-15)
    assert (schedule(39), schedule(40), schedule(800), schedule(10_000)) == (1.0, 1.0, 0.1, 0.1)


CLOSED_FORMS = {
    "constant": lambda t: 1.0,
    "step": lambda t: 1.0 if t < 30 else 0.1 if t < 50 else 0.1**2,
    "cosine": lambda t: 0.1 + 0.9 * math.cos(math.pi / 2 * (t - 20) / 80) ** 2,
    "linear": lambda t: (1.0 * (100 - t) + 0.1 * (t - 20)) / 80,
    "polynomial": lambda t: 0.1 + 0.9 * ((100 - t) / 80) ** 3,
    "wsd": lambda t: 1.0 if t <= 80 else 1.0 - 0.9 * (t - 80) / 20,
    "flat_cosine": lambda t: 1.0 if t <= 60 else 0.1 + 0.9 * math.cos(math.pi / 2 * (t - 60) / 40) ** 2,
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_equal_their_closed_forms(name):
    """W = 20, T = 100, 10 steps an epoch."""
    schedule = schedule_of(PRESETS[name], warmup_steps=20)

    assert [schedule(t) for t in range(20)] == [(t + 1) / 20 for t in range(20)]
    expected = [CLOSED_FORMS[name](t) for t in range(20, 101)]
    assert [schedule(t) for t in range(20, 101)] == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("name", ["cosine", "linear", "polynomial", "wsd", "flat_cosine"])
def test_begins_at_one_and_has_the_floor_at_the_end_exactly(name):
    for warmup_steps in (0, 1, 7):
        schedule = schedule_of(PRESETS[name], warmup_steps=warmup_steps)
        assert schedule(warmup_steps) == 1.0
        assert schedule(100) == schedule(101) == 0.1
        assert 0.1 < schedule(99) < 1.0


def test_no_warmup_and_warmup_of_one_step_are_the_same_at_first():
    assert schedule_of(PRESETS["cosine"], warmup_steps=0)(0) == 1.0
    assert schedule_of(PRESETS["cosine"], warmup_steps=1)(0) == 1.0
    assert schedule_of(PRESETS["cosine"], warmup_steps=2)(0) == 0.5


@pytest.mark.parametrize("warmup_steps", [10, 11])
def test_warmup_as_long_as_the_run_is_refused_with_both_numbers(warmup_steps):
    with pytest.raises(UserError, match=rf"{warmup_steps}.*10 steps"):
        schedule_of(PRESETS["cosine"], warmup_steps=warmup_steps, total_steps=10)


def test_step_drops_are_counted_from_the_start_of_the_run():
    """The reference: the tenth part once `current_step` has reached lr_drop x steps per epoch."""
    schedule = schedule_of(StepScheduleConfig(drop_epochs=[2.5]), warmup_steps=5)

    assert [schedule(t) for t in (4, 24, 25, 99)] == [1.0, 1.0, 0.1, 0.1]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (WSDScheduleConfig(decay_fraction=0.0), [1.0, 1.0, 0.0]),
        (WSDScheduleConfig(decay_fraction=1.0), [1.0, 0.5, 0.0]),
        (FlatCosineScheduleConfig(flat_fraction=1.0), [1.0, 1.0, 0.0]),
        (FlatCosineScheduleConfig(flat_fraction=0.0), [1.0, 0.5, 0.0]),
    ],
)
def test_fractions_at_their_ends(config, expected):
    schedule = schedule_of(config)
    assert [schedule(t) for t in (0, 50, 100)] == pytest.approx(expected, abs=1e-15)


def test_a_torch_scheduler_is_no_preset():
    assert schedule_of(TorchSchedulerConfig(_target_="torch.optim.lr_scheduler.StepLR")) is None
