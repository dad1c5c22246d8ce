import importlib
from pathlib import Path

import pytest

from rfdetr_train.cli import compose_config
from rfdetr_train.engine.course import RunLength

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("plot_schedule")


def trace(script, *overrides, steps_per_epoch=10):
    config = compose_config("train", list(overrides))
    return script.trace(config, RunLength(steps_per_epoch, config.trainer.epochs, config.trainer.max_steps))


def test_traces_the_rates_that_training_uses(script):
    rates = trace(script, "model=nano", "scheduler=cosine", "warmup=linear", "warmup.steps=4", "trainer.epochs=2")
    assert rates["head and projector"][:5] == pytest.approx([2.5e-5, 5e-5, 7.5e-5, 1e-4, 1e-4])
    assert rates["decoder"][4] == 7e-5
    assert rates["encoder, final norm"][4] == 7.349999999999998e-05
    assert rates["encoder, first block"][4] == pytest.approx(7.35e-5 * 0.8**13)
    assert {len(values) for values in rates.values()} == {20}


def test_the_depth_is_the_configured_models(script):
    """tiny's last feature block is 4, so five layers lie above its first block."""
    rates = trace(script, "model=tiny", "scheduler=constant", "trainer.epochs=1")
    assert rates["encoder, first block"][0] == pytest.approx(1.5e-4 * 0.7**2 * 0.8**5)


def test_own_rules_go_by_the_models_names(script):
    rates = trace(script, "scheduler=constant", "trainer.epochs=1", "optimizer.rules=[{pattern: decoder, lr: 0.5}]")
    assert rates["decoder"][0] == 0.5


PLATEAU = [
    "scheduler=torch",
    "scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau",
    "scheduler.interval=evaluation",
    "+scheduler.args.patience=0",
]


@pytest.mark.parametrize(("every_epochs", "drops_after"), [(1, 20), (2, 40)])
def test_evaluations_come_when_training_has_them(script, every_epochs, drops_after):
    """Without patience the second evaluation without gain over the first lowers the rate."""
    rates = trace(script, *PLATEAU, "trainer.epochs=5", f"evaluation.every_epochs={every_epochs}")["decoder"]
    assert rates.index(min(rates[: drops_after + 1])) == drops_after


def test_the_rate_of_swa_is_drawn(script):
    swa = ["ema=swa", "ema.start_epoch=2", "ema.lr_factor=0.5", "ema.anneal_epochs=1"]
    rates = trace(script, "scheduler=constant", "trainer.epochs=4", *swa)["head and projector"]
    assert rates == pytest.approx([1e-4] * 20 + [5e-5] * 20)


@pytest.mark.parametrize(
    "overrides",
    [
        ["scheduler=wsd"],
        ["scheduler=step", "scheduler.drop_epochs=[1]", "warmup=linear", "warmup.steps=3"],
        PLATEAU,
    ],
)
def test_draws_any_schedule(script, tmp_path, overrides):
    script.draw(compose_config("train", [*overrides, "trainer.epochs=2"]), 10, tmp_path / "schedule.png")
    assert (tmp_path / "schedule.png").read_bytes().startswith(b"\x89PNG")
