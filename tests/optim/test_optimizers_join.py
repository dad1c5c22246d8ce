import pytest
import torch

from rfdetr_train.config import (
    AdagradConfig,
    AdamWConfig,
    CosineScheduleConfig,
    LBFGSConfig,
    MuonConfig,
    SGDConfig,
    TorchSchedulerConfig,
)
from rfdetr_train.errors import UserError
from rfdetr_train.optim.optimizers import build_optimizer, check_can_join, join
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.optim.schedulers import build_scheduler

T = "torch.optim.lr_scheduler."
SCHEDULERS = {
    "cosine": CosineScheduleConfig(min_factor=0.1),
    "sequential": TorchSchedulerConfig(_target_=T + "ExponentialLR", args={"gamma": 0.9}),
    "epoch": TorchSchedulerConfig(_target_=T + "ExponentialLR", args={"gamma": 0.5}, interval="epoch"),
    "plateau": TorchSchedulerConfig(
        _target_=T + "ReduceLROnPlateau", args={"patience": 0, "factor": 0.5}, interval="evaluation"
    ),
}


def encoder_of(module):
    roles = module.parameter_roles()
    return [(name, parameter) for name, parameter in module.named_parameters() if roles[name].part == "encoder"]


def build(module, config, scheduler_config, warmup_steps=6):
    annotated = annotate(module.named_parameters(), module.parameter_roles(), config)
    optimizer = build_optimizer(config, annotated, "cpu")
    scheduler = build_scheduler(
        optimizer, scheduler_config, warmup_steps=warmup_steps, total_steps=30, steps_per_epoch=5
    )
    return optimizer, scheduler


def run(module, optimizer, scheduler, give_gradients, steps):
    """The rate of each parameter that trains, step by step."""
    rates = []
    for step in steps:
        rates.append({n: g["lr"] for g in optimizer.param_groups for n in g["param_names"]})
        give_gradients(module, step)
        optimizer.step()
        scheduler.step()
        if (step + 1) % 5 == 0:
            scheduler.epoch_end()
            scheduler.evaluated({"AP": 0.5})
    return rates


@pytest.mark.parametrize("join_at", [3, 12])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("config", [AdamWConfig(), AdagradConfig(), MuonConfig(fused=False)], ids=lambda c: c.name)
def test_a_part_that_joins_has_the_rates_of_one_that_was_there(make_toy, give_gradients, config, name, join_at):
    """Joining during warmup and after it."""
    module = make_toy()
    optimizer, scheduler = build(module, config, SCHEDULERS[name])
    expected = run(module, optimizer, scheduler, give_gradients, range(25))

    module = make_toy()
    for _, parameter in encoder_of(module):
        parameter.requires_grad_(False)
    optimizer, scheduler = build(module, config, SCHEDULERS[name])
    before = run(module, optimizer, scheduler, give_gradients, range(join_at))
    assert not any("blocks" in key for key in before[-1])
    for _, parameter in encoder_of(module):
        parameter.requires_grad_(True)
    join(optimizer, scheduler, annotate(encoder_of(module), module.parameter_roles(), config), merge=True)
    found = run(module, optimizer, scheduler, give_gradients, range(join_at, 25))

    for step, rates in enumerate(found, start=join_at):
        assert rates == pytest.approx(expected[step], rel=1e-12), step
    assert all(optimizer.state[parameter] for _, parameter in encoder_of(module))


def test_names_stay_unique_and_groups_complete(make_toy):
    module = make_toy()
    module.projector.requires_grad_(False)
    optimizer, scheduler = build(module, SGDConfig(), SCHEDULERS["cosine"])
    named = [(f"projector.{name}", parameter) for name, parameter in module.projector.named_parameters()]
    for _, parameter in named:
        parameter.requires_grad_(True)

    join(optimizer, scheduler, annotate(named, module.parameter_roles(), SGDConfig()), merge=True)
    extra = torch.nn.Parameter(torch.zeros(2))
    join(
        optimizer,
        scheduler,
        annotate([("projector.bias", extra)], module.parameter_roles(), SGDConfig()),
        merge=True,
    )

    names = [group["group_name"] for group in optimizer.param_groups]
    assert names[-2:] == ["projector", "projector.joined"]
    assert len(scheduler.scheduler.base_lrs) == len(names) == len(set(names))


def test_a_parameter_that_is_there_already_is_an_error(make_toy):
    module = make_toy()
    optimizer, scheduler = build(module, SGDConfig(), SCHEDULERS["cosine"])
    with pytest.raises(ValueError, match="more than one parameter group"):
        join(optimizer, scheduler, annotate(encoder_of(module), module.parameter_roles(), SGDConfig()), merge=True)


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        ("OneCycleLR", {"total_steps": 30}, "OneCycleLR fixes its rates"),
        ("CyclicLR", {"base_lr": 0.1, "max_lr": 1.0}, "CyclicLR fixes its rates"),
        ("LambdaLR", {"lr_lambda": ["math.exp2"] * 7 + ["math.cos"]}, "LambdaLR has its own lr_lambdas"),
    ],
)
def test_schedulers_that_cannot_grow_are_refused_before_training(make_toy, target, args, message):
    config = TorchSchedulerConfig(_target_=T + target, args=args)
    optimizer, scheduler = build(make_toy(), SGDConfig(), config, warmup_steps=0)
    with pytest.raises(UserError, match=message):
        check_can_join(optimizer, scheduler)


def test_lbfgs_cannot_grow(make_toy):
    optimizer, scheduler = build(make_toy(), LBFGSConfig(weight_decay=0.0), SCHEDULERS["cosine"])
    with pytest.raises(UserError, match="lbfgs"):
        check_can_join(optimizer, scheduler)


def test_groups_that_share_no_factor_are_refused(make_toy):
    """A floor that is a rate, not a share: what the schedule would give a new group is not known."""
    config = TorchSchedulerConfig(_target_=T + "CosineAnnealingLR", args={"T_max": 24, "eta_min": 1e-6})
    module = make_toy()
    module.head.requires_grad_(False)
    optimizer, scheduler = build(module, SGDConfig(), config)
    for _ in range(12):
        optimizer.step()
        scheduler.step()
    module.head.requires_grad_(True)
    named = [("head.weight", module.head.weight)]
    with pytest.raises(UserError, match="absolute floor"):
        join(optimizer, scheduler, annotate(named, module.parameter_roles(), SGDConfig()), merge=True)
