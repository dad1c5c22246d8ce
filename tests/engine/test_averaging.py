"""Averages against closed forms."""

import math

import pytest
import torch
from torch import nn

from rfdetr_train.config import AveragingConfig, EmaConfig, FreezeConfig, FreezePartConfig, SwaConfig
from rfdetr_train.engine.averaging import build_average, ema_decay
from rfdetr_train.engine.freezing import FrozenParts
from rfdetr_train.roles import ParameterRole


def scalar_model(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def set_weight(model: nn.Linear, value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def test_decay_ramps_as_published() -> None:
    """d_t = 0.993 (1 - exp(-t / 100)), t from 1."""
    assert ema_decay(1, 0.993, 100.0) == pytest.approx(0.993 * (1 - math.exp(-0.01)), abs=0)
    assert ema_decay(100, 0.993, 100.0) == pytest.approx(0.993 * 0.6321205588, rel=1e-9)  # 1 - 1/e
    assert ema_decay(7, 0.9, 0.0) == 0.9


def test_ema_equals_the_recursion_by_hand() -> None:
    """The first update copies; update t mixes with d_t."""
    model = scalar_model(1.0)
    average = build_average(EmaConfig(decay=0.9, tau=2.0), model)
    assert average.model is None
    expected = 0.0
    for t, value in enumerate([1.0, 3.0, -2.0, 5.0], start=1):
        set_weight(model, value)
        average.step_done()
        decay = 0.9 * (1 - math.exp(-t / 2.0))
        expected = value if t == 1 else decay * expected + (1 - decay) * value
        assert average.model is not None
        assert average.model.weight.item() == pytest.approx(expected, rel=1e-6)  # type: ignore[union-attr]


def test_swa_is_the_mean_of_the_late_epochs() -> None:
    model = scalar_model(0.0)
    average = build_average(SwaConfig(start_epoch=2), model)
    for epoch, value in enumerate([100.0, 100.0, 1.0, 2.0, 6.0]):
        set_weight(model, value)
        average.step_done()
        average.epoch_done(epoch)
        assert (average.model is None) == (epoch < 2)
    assert average.model.weight.item() == pytest.approx(3.0)  # type: ignore[union-attr]


def test_an_average_continues_to_the_bit() -> None:
    torch.manual_seed(0)
    model, config = nn.Linear(4, 3), EmaConfig()
    average = build_average(config, model)
    twin_model = nn.Linear(4, 3)
    for step in range(6):
        with torch.no_grad():
            model.weight.add_(torch.randn_like(model.weight))
        if step == 3:
            twin_model.load_state_dict(model.state_dict())
            twin = build_average(config, twin_model)
            twin.load_state_dict(average.state_dict(), nn.Module.load_state_dict)
        average.step_done()
        if step >= 3:
            twin_model.load_state_dict(model.state_dict())
            twin.step_done()
    assert torch.equal(average.model.weight, twin.model.weight)  # type: ignore[union-attr]


def test_no_average_keeps_nothing() -> None:
    average = build_average(AveragingConfig(), scalar_model(1.0))
    average.step_done()
    assert average.model is None
    assert average.state_dict() is None


def test_swa_finds_the_statistics_of_batch_norms_anew() -> None:
    """Mean 3 and variance 0 of constant images, whatever the raw model had seen."""
    model = nn.Sequential(nn.BatchNorm2d(3))
    average = build_average(SwaConfig(start_epoch=0), model)
    model(torch.randn(4, 3, 2, 2))
    average.epoch_done(0)
    average.refresh_statistics(iter([torch.full((4, 3, 2, 2), 3.0)] * 2))
    norm = average.model[0]  # type: ignore[index]
    assert norm.running_mean.tolist() == [3.0] * 3
    assert norm.running_var.tolist() == [0.0] * 3


def test_swa_leaves_the_statistics_of_frozen_batch_norms_alone() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3))
    model[0].running_mean.fill_(5.0)
    model[0].running_var.fill_(7.0)
    parts = {"0": "encoder", "1": "decoder"}
    roles = {name: ParameterRole(parts[name[0]], "norm") for name, _ in model.named_parameters()}
    FrozenParts(model, roles, FreezeConfig(encoder=FreezePartConfig(always=True)))
    average = build_average(SwaConfig(start_epoch=0), model)
    average.epoch_done(0)
    average.refresh_statistics(iter([torch.full((4, 3, 2, 2), 5.0)] * 2))
    frozen, trained = average.model  # type: ignore[misc]
    assert (frozen.running_mean.tolist(), frozen.running_var.tolist()) == ([5.0] * 3, [7.0] * 3)
    assert trained.running_mean.tolist() == pytest.approx([0.0] * 3, abs=1e-6)  # of (5 - 5) / 7


def test_models_without_batch_norm_read_no_image() -> None:
    average = build_average(SwaConfig(start_epoch=0), scalar_model(1.0))
    average.epoch_done(0)

    def unread():
        raise AssertionError("an image was read")
        yield

    average.refresh_statistics(unread())


@pytest.mark.parametrize("config", [EmaConfig(), SwaConfig(start_epoch=0)])
def test_counters_are_copied(config: AveragingConfig) -> None:
    """torch's own update of SWA would divide them, and fail."""
    model = nn.BatchNorm1d(2)
    average = build_average(config, model)
    for epoch in range(3):
        model(torch.randn(4, 2))
        average.step_done()
        average.epoch_done(epoch)
    assert average.model.num_batches_tracked.item() == 3  # type: ignore[union-attr]


def test_an_average_of_another_kind_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Else SWA would count thousands of EMA updates as epochs and hardly move."""
    model = scalar_model(1.0)
    ema = build_average(EmaConfig(), model)
    for _ in range(5):
        ema.step_done()
    set_weight(model, 4.0)
    swa = build_average(SwaConfig(start_epoch=0), model)
    swa.load_state_dict(ema.state_dict(), nn.Module.load_state_dict)
    assert swa.model is None
    swa.epoch_done(0)
    assert swa.model.weight.item() == 4.0  # type: ignore[union-attr]
    assert "begins anew" in caplog.text
