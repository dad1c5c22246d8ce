import io
import logging

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, LinearLR, SequentialLR

from rfdetr_train.config import CosineScheduleConfig, SchedulerConfig, StepScheduleConfig, TorchSchedulerConfig
from rfdetr_train.errors import UserError
from rfdetr_train.optim.schedulers import build_scheduler
from rfdetr_train.optim.schedules import build_schedule

T = "torch.optim.lr_scheduler."
RATES = (1.0, 0.25)


def make_optimizer(rates=RATES):
    groups = [
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr, "group_name": f"g{i}"} for i, lr in enumerate(rates)
    ]
    return torch.optim.SGD(groups)


def make(config, optimizer=None, warmup_steps=0, total_steps=40, steps_per_epoch=4):
    optimizer = optimizer or make_optimizer()
    return build_scheduler(
        optimizer, config, warmup_steps=warmup_steps, total_steps=total_steps, steps_per_epoch=steps_per_epoch
    )


def torch_config(target, interval="step", monitor="AP", **args):
    return TorchSchedulerConfig(_target_=T + target, args=args, interval=interval, monitor=monitor)


def run(scheduler, steps, steps_per_epoch=4, start=0, metrics=None):
    """The rates of the first group over `steps` steps, with all of the loop's calls."""
    rates = []
    for step in range(start, start + steps):
        rates.append(scheduler.last_lr["g0"])
        scheduler.optimizer.step()
        scheduler.step()
        if (step + 1) % steps_per_epoch == 0:
            scheduler.epoch_end()
            scheduler.evaluated({"AP": metrics(step) if metrics else 0.5, "loss": 1.0})
    return rates


def test_presets_drive_each_group_from_its_own_rate_to_the_bit():
    config = CosineScheduleConfig(min_factor=0.1)
    scheduler = make(config, warmup_steps=5)
    schedule = build_schedule(config, warmup_steps=5, total_steps=40, steps_per_epoch=4)

    for step in range(42):
        expected = {"g0": RATES[0] * schedule(step), "g1": RATES[1] * schedule(step)}
        assert scheduler.last_lr == scheduler.lr_at(step) == expected
        scheduler.optimizer.step()
        scheduler.step()


def test_presets_are_one_lambda_lr():
    assert type(make(StepScheduleConfig()).scheduler) is LambdaLR


@pytest.mark.parametrize("warmup_steps", [2, 3, 7, 40])
def test_warmup_in_front_equals_the_preset_and_total_iters_of_w_misses_it(warmup_steps):
    """A SequentialLR with LinearLR(total_iters=W-1) against the pure function, and the common mistake."""
    cosine = {"T_max": 800 - warmup_steps, "eta_min": 0.1}
    managed = make(torch_config("CosineAnnealingLR", **cosine), make_optimizer((1.0,)), warmup_steps, total_steps=800)
    preset = build_schedule(
        CosineScheduleConfig(min_factor=0.1), warmup_steps=warmup_steps, total_steps=800, steps_per_epoch=1
    )
    assert run(managed, 801) == pytest.approx([preset(step) for step in range(801)], abs=1e-9)

    optimizer = make_optimizer((1.0,))
    warm = LinearLR(optimizer, 1 / warmup_steps, total_iters=warmup_steps)
    flat = LambdaLR(optimizer, lambda _: 1.0)
    wrong = SequentialLR(optimizer, [warm, flat], [warmup_steps])
    for _ in range(warmup_steps - 1):
        optimizer.step()
        wrong.step()
    assert optimizer.param_groups[0]["lr"] < 1.0


def test_lr_at_is_refused_where_rates_need_stepping():
    with pytest.raises(UserError, match="StepLR"):
        make(torch_config("StepLR", step_size=3)).lr_at(4)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(UserError, match="no such schedule"):
        make(SchedulerConfig(name="sawtooth"))


def test_torch_schedulers_refuse_a_warmup_as_long_as_the_run_too():
    with pytest.raises(UserError, match=r"40.*40"):
        make(torch_config("StepLR", step_size=3), warmup_steps=40)


class TestPerEpoch:
    """4 steps an epoch, halved every epoch; epochs count from the start, warmup takes a share."""

    config = torch_config("ExponentialLR", interval="epoch", gamma=0.5)

    def test_steps_at_the_end_of_each_epoch(self):
        assert run(make(self.config), 12) == [1.0] * 4 + [0.5] * 4 + [0.25] * 4

    @pytest.mark.parametrize("warmup_steps", [1, 3, 4, 6])
    def test_warmup_runs_by_steps(self, warmup_steps):
        share = [min((step + 1) / warmup_steps, 1.0) for step in range(12)]
        expected = [0.5 ** (step // 4) * share[step] for step in range(12)]
        assert run(make(self.config, warmup_steps=warmup_steps), 12) == pytest.approx(expected, rel=1e-15)

    def test_compositions_that_no_warmup_may_precede_per_step_work_per_epoch(self):
        children = [{"_target_": T + "ExponentialLR", "gamma": 0.5}, {"_target_": T + "ExponentialLR", "gamma": 0.5}]
        config = torch_config("ChainedScheduler", interval="epoch", schedulers=children)
        assert run(make(config, warmup_steps=2), 8) == [0.5, 1.0, 1.0, 1.0, 0.25, 0.25, 0.25, 0.25]


class TestPlateau:
    """patience 0: each evaluation that is no better than the best one halves the rate."""

    config = torch_config("ReduceLROnPlateau", interval="evaluation", patience=0, factor=0.5)

    def test_ap_counts_as_better_when_it_rises(self):
        rising = run(make(self.config), 12, metrics=lambda step: step / 100)
        assert rising == [1.0] * 12
        level = run(make(self.config), 12, metrics=lambda step: 0.5)
        assert level == [1.0] * 8 + [0.5] * 4

    def test_a_loss_counts_as_better_when_it_falls(self):
        config = torch_config("ReduceLROnPlateau", interval="evaluation", monitor="val_loss", patience=0)
        assert make(config).scheduler.mode == "min"

    def test_with_warmup(self):
        found = run(make(self.config, warmup_steps=10), 12)
        assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.45, 0.5, 0.5, 0.5])

    def test_a_metric_that_no_evaluation_gives_is_refused(self):
        with pytest.raises(UserError, match=r"AP51.*AP, loss"):
            make(torch_config("ReduceLROnPlateau", interval="evaluation", monitor="AP51")).evaluated(
                {"AP": 0.1, "loss": 1.0}
            )

    def test_a_metric_without_value_is_passed_over_and_said(self, caplog):
        caplog.set_level(logging.WARNING)
        scheduler = make(self.config)
        scheduler.evaluated({"AP": None})
        assert scheduler.scheduler.last_epoch == 0
        assert "AP has no value" in caplog.text


CONFIGS = {
    "cosine": CosineScheduleConfig(),
    "multistep": torch_config("MultiStepLR", milestones=[3, 9], gamma=0.5),
    "sequential": torch_config(
        "SequentialLR",
        schedulers=[{"_target_": T + "ConstantLR"}, {"_target_": T + "CosineAnnealingWarmRestarts", "T_0": 3}],
        milestones=[4],
    ),
    "chained": torch_config(
        "ChainedScheduler",
        schedulers=[{"_target_": T + "ConstantLR"}, {"_target_": T + "ExponentialLR", "gamma": 0.9}],
    ),
    "one_cycle": torch_config("OneCycleLR", total_steps=40, cycle_momentum=False),
    "cyclic": torch_config("CyclicLR", base_lr=0.1, max_lr=1.0, step_size_up=3, cycle_momentum=False),
    "epoch": torch_config("StepLR", interval="epoch", step_size=2, gamma=0.5),
    "plateau": torch_config("ReduceLROnPlateau", interval="evaluation", patience=0, factor=0.5),
}
WITHOUT_WARMUP = ("chained", "one_cycle", "cyclic")


@pytest.mark.parametrize("name", CONFIGS)
def test_state_is_plain_and_goes_on_to_the_bit(name):
    warmup_steps = 0 if name in WITHOUT_WARMUP else 6
    whole = run(make(CONFIGS[name], warmup_steps=warmup_steps), 24)
    first = make(CONFIGS[name], warmup_steps=warmup_steps)
    assert run(first, 11) == whole[:11]
    buffer = io.BytesIO()
    torch.save((first.state_dict(), [g["lr"] for g in first.optimizer.param_groups]), buffer)
    buffer.seek(0)
    state, rates = torch.load(buffer, weights_only=True)
    assert _only_plain(state)

    second = make(CONFIGS[name], warmup_steps=warmup_steps)
    for group, lr in zip(second.optimizer.param_groups, rates, strict=True):
        group["lr"] = lr
    second.load_state_dict(state)

    assert run(second, 13, start=11) == whole[11:]


def _only_plain(value):
    if isinstance(value, dict):
        return all(_only_plain(item) for item in value.values())
    if isinstance(value, list):
        return all(_only_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def test_a_preset_may_change_in_mid_run_and_the_present_config_holds():
    first = make(CosineScheduleConfig())
    run(first, 11)
    second = make(StepScheduleConfig(drop_epochs=[1.0]), make_optimizer((2.0, 0.5)))

    second.load_state_dict(first.state_dict())

    assert second.last_lr == second.lr_at(11) == {"g0": 0.2, "g1": 0.05}


def test_the_settings_of_the_present_config_hold(caplog):
    caplog.set_level(logging.INFO)
    first = make(torch_config("StepLR", step_size=5, gamma=0.1))
    second = make(torch_config("StepLR", step_size=5, gamma=0.5))

    second.load_state_dict(first.state_dict())

    assert second.scheduler.gamma == 0.5
    assert "StepLR: gamma is 0.5 now, was 0.1" in caplog.text


def test_another_kind_of_scheduler_is_refused():
    state = make(CosineScheduleConfig()).state_dict()
    with pytest.raises(UserError, match=r"LambdaLR.*StepLR"):
        make(torch_config("StepLR", step_size=5)).load_state_dict(state)
    del state["kind"]
    with pytest.raises(UserError, match="another kind"):
        make(torch_config("StepLR", step_size=5)).load_state_dict(state)


def test_a_state_as_torch_writes_it_is_read():
    first = make(CosineScheduleConfig())
    rates = run(first, 11)
    second = make(CosineScheduleConfig())
    second.load_state_dict(first.scheduler.state_dict())
    assert second.last_lr == first.last_lr
    assert rates[10] == second.lr_at(10)["g0"]
