import importlib
from pathlib import Path

import pytest

from rfdetr_train.cli import compose_config

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("plot_schedule")


def test_traces_the_rates_that_training_uses(script):
    config = compose_config("train", ["scheduler=cosine", "warmup=linear", "warmup.steps=4", "trainer.epochs=2"])

    warmup_steps, total_steps = script.run_length(config, steps_per_epoch=10)
    rates = script.trace(config, warmup_steps, total_steps, steps_per_epoch=10)

    assert (warmup_steps, total_steps) == (4, 20)
    assert rates["head and projector"][:5] == pytest.approx([2.5e-5, 5e-5, 7.5e-5, 1e-4, 1e-4])
    assert rates["decoder"][4] == 7e-5
    assert rates["encoder, final norm"][4] == 7.349999999999998e-05
    assert {len(values) for values in rates.values()} == {20}


@pytest.mark.parametrize(
    "overrides",
    [
        ["scheduler=wsd"],
        ["scheduler=step", "scheduler.drop_epochs=[1]", "warmup=linear", "warmup.steps=3"],
        [
            "scheduler=torch",
            "scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau",
            "scheduler.interval=evaluation",
            "+scheduler.args.patience=0",
        ],
    ],
)
def test_draws_any_schedule(script, tmp_path, overrides):
    script.draw(compose_config("train", [*overrides, "trainer.epochs=2"]), 10, tmp_path / "schedule.png")
    assert (tmp_path / "schedule.png").read_bytes().startswith(b"\x89PNG")
