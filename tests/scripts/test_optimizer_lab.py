import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
ROWS = {
    "momentum_rows": 5,
    "decay_rows": 5,
    "warmup_cosine_rows": 7,
    "resume_rows": 3,
    "lockstep_rows": 5,
    "ema_rows": 2,
}


@pytest.fixture
def lab(monkeypatch):
    """The script, importable as it is when it runs: from its own folder."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("optimizer_lab")


@pytest.mark.parametrize("name", ROWS)
def test_every_measurement_holds(lab, name):
    rows = getattr(lab, name)()
    assert len(rows) == ROWS[name]
    assert [row for row in rows if not row.holds] == []


def test_every_experiment_is_in_the_table(lab):
    assert {experiment.__name__ for experiment in lab.EXPERIMENTS.values()} == set(ROWS)


def test_the_numbers_are_those_of_hand_calculation(lab):
    """Zero gradient: Adam moves by lr x (1 - 1e-8 / decay...) a step, AdamW multiplies by 1 - lr x decay."""
    measured = [row.measured for row in lab.decay_rows()[:3]]
    assert measured[0] == pytest.approx(0.04995, abs=5e-6)
    assert measured[1] == pytest.approx(0.04995, abs=5e-6)
    assert measured[2] == pytest.approx(1 - (1 - 1e-2 * 0.1) ** 5, rel=1e-12)
    schedule = [row.measured for row in lab.warmup_cosine_rows()[:5]]
    assert schedule == pytest.approx([7.5e-5, 3e-3, 3e-3, 1.65e-3, 3e-4], rel=1e-12)


def test_a_wrong_update_does_not_hold(lab):
    """The comparison can fail: Nesterov's update against plain momentum."""
    update = lab.momentum_update(nesterov=True)
    gap = lab.gap_on_a_quartic(update, lambda params: lab.SGD(params, momentum=0.9), drop_at=20)
    assert not lab.below("wrong", gap, 1e-14).holds
    assert lab.lockstep_gap(update, lambda params: lab.SGD(params, lr=1e-2, momentum=0.9), steps=3) > 1e-4


def test_the_network_has_385_parameters(lab):
    assert sum(parameter.numel() for parameter in lab.make_network().parameters()) == 385
