import logging
from dataclasses import fields

import pytest
import torch
from torch import nn

from rfdetr_train.config import (
    AdafactorConfig,
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    CustomOptimizerConfig,
    LBFGSConfig,
    LionConfig,
    ModelConfig,
    MuonConfig,
    NAdamConfig,
    OptimizerConfig,
    RAdamConfig,
    RMSpropConfig,
    SGDConfig,
)
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import build_model
from rfdetr_train.optim.optimizers import OPTIMIZERS, TORCH_NAMES, build_optimizer, fused_refusal
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.roles import ParameterRole

# For every key that is not shared by all optimizers, a value that is not its default.
CHANGED = {
    AdamWConfig: {"betas": [0.8, 0.9], "eps": 1e-6, "amsgrad": True, "fused": False, "foreach": True},
    AdamConfig: {"betas": [0.8, 0.9], "eps": 1e-6, "amsgrad": True, "fused": False, "foreach": True},
    SGDConfig: {"momentum": 0.8, "dampening": 0.1, "nesterov": True, "fused": False, "foreach": True},
    AdagradConfig: {"lr_decay": 0.1, "initial_accumulator_value": 0.2, "eps": 1e-6, "fused": False, "foreach": True},
    RMSpropConfig: {"alpha": 0.9, "eps": 1e-6, "momentum": 0.5, "centered": True, "fused": False, "foreach": True},
    NAdamConfig: {
        "betas": [0.8, 0.9],
        "eps": 1e-6,
        "momentum_decay": 0.1,
        "decoupled_weight_decay": False,
        "foreach": True,
    },
    RAdamConfig: {"betas": [0.8, 0.9], "eps": 1e-6, "decoupled_weight_decay": False, "foreach": True},
    AdafactorConfig: {"beta2_decay": -0.7, "d": 2.0, "foreach": True},
    LBFGSConfig: {"max_iter": 3, "history_size": 5, "line_search": None},
    MuonConfig: {
        "momentum": 0.9,
        "nesterov": False,
        "ns_steps": 3,
        "adjust_lr": "original",
        "betas": [0.8, 0.9],
        "eps": 1e-6,
        "fused": False,
    },
    LionConfig: {"betas": [0.8, 0.9], "foreach": True},
}
ONE_KEY_AT_A_TIME = [
    (config, key, value)
    for config, keys in CHANGED.items()
    for key, value in keys.items()
    if (config, key) != (RMSpropConfig, "fused")  # torch has no such argument, and false is what it does
]


def build(module, config, **more):
    annotated = annotate(module.named_parameters(), module.parameter_roles(), config)
    return build_optimizer(config, annotated, "cpu", **more)


def train(module, optimizer, give_gradients, steps):
    for step in range(steps):
        give_gradients(module, step)
        optimizer.step()


def test_every_key_is_tried_below():
    shared = {field.name for field in fields(OptimizerConfig)}
    for config_class, keys in CHANGED.items():
        assert set(keys) == {field.name for field in fields(config_class)} - shared, config_class
    assert {config_class().name for config_class in CHANGED} == set(OPTIMIZERS)


@pytest.mark.parametrize(("config_class", "key", "value"), ONE_KEY_AT_A_TIME)
def test_every_key_reaches_the_optimizer(make_toy, config_class, key, value):
    config = config_class(**{key: value})

    groups = build(make_toy(), config).param_groups

    expected = tuple(value) if isinstance(value, list) else value
    default = getattr(config_class(), key)
    assert value != default
    found = [group[TORCH_NAMES.get(key, key)] for group in groups if TORCH_NAMES.get(key, key) in group]
    if config_class is MuonConfig and key == "eps":
        found = [group["eps"] for group in groups if not group["use_muon"]]
    assert found
    assert all(item == expected for item in found)


@pytest.mark.parametrize("config_class", [c for c in CHANGED if c is not LBFGSConfig])
def test_every_optimizer_gets_the_same_groups(make_toy, config_class):
    groups = build(make_toy(), config_class()).param_groups

    found = {name: (group["lr"], group["weight_decay"]) for group in groups for name in group["param_names"]}
    expected = annotate(make_toy().named_parameters(), make_toy().parameter_roles(), config_class())
    assert found == {item.name: (item.lr, item.weight_decay) for item in expected}
    assert all(isinstance(group["group_name"], str) for group in groups)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["adamw", "sgd", "lion"])
def test_merged_groups_train_bit_identically(make_toy, give_gradients, name, fused):
    """12 steps of identical gradients; merging changes the number of kernels and nothing else."""
    more = {"fused": fused} if name != "lion" else {"foreach": fused}
    config_class = {"adamw": AdamWConfig, "sgd": SGDConfig, "lion": LionConfig}[name]
    modules = []
    for merge in (True, False):
        module = make_toy()
        optimizer = build(module, config_class(merge_groups=merge, lr=1e-2, encoder_lr=1e-2, **more))
        assert len(optimizer.param_groups) == (8 if merge else 14)
        train(module, optimizer, give_gradients, 12)
        modules.append(module)
    for merged, single in zip(*(module.parameters() for module in modules), strict=True):
        assert torch.equal(merged, single)
    assert not torch.equal(modules[0].embed, make_toy().embed)


@pytest.mark.parametrize("fused", [True, False])
def test_the_real_nano_trains_bit_identically_merged_and_unmerged(fused):
    """All 416 tensors of nano for 12 steps. Both copies share one gradient tensor per parameter."""
    config = ModelConfig(name="nano", resolution=384, decoder_layers=2)
    torch.manual_seed(0)
    merged = build_model(config, num_classes=90)
    single = build_model(config, num_classes=90)
    single.load_state_dict(merged.state_dict())
    optimizers = [
        build(module, AdamWConfig(merge_groups=merge, fused=fused))
        for module, merge in ((merged, True), (single, False))
    ]
    assert [len(optimizer.param_groups) for optimizer in optimizers] == [28, 416]
    before = [parameter.detach().clone() for parameter in merged.parameters()]
    gradients = [torch.randn_like(parameter) * 1e-3 for parameter in merged.parameters()]
    for one, other, gradient in zip(merged.parameters(), single.parameters(), gradients, strict=True):
        one.grad = other.grad = gradient
    for step in range(12):
        torch._foreach_mul_(gradients, -0.9 if step % 3 else 1.5)
        for optimizer in optimizers:
            optimizer.step()
    for start_value, one, other in zip(before, merged.parameters(), single.parameters(), strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, start_value)


def test_fused_auto_says_yes_or_why_not(make_toy, caplog):
    caplog.set_level(logging.INFO)
    assert all(group["fused"] is True for group in build(make_toy(), AdamWConfig()).param_groups)
    assert "fused optimizer step: yes" in caplog.text

    build(make_toy(), NAdamConfig())
    assert "no, NAdam has no fused form" in caplog.text

    assert all(group["fused"] is False for group in build(make_toy(), AdamWConfig(foreach=True)).param_groups)
    assert "no, optimizer.foreach=true excludes it" in caplog.text


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "adagrad"])
def test_torch_has_fused_forms_on_a_cpu(name):
    assert fused_refusal(OPTIMIZERS[name], torch.device("cpu"), torch.float32) is None


def test_fused_is_refused_where_torch_has_none(make_toy):
    with pytest.raises(UserError, match="rmsprop has no fused form"):
        RMSpropConfig(fused=True)
    module = make_toy()
    config = CustomOptimizerConfig(_target_="torch.optim.RMSprop", args={"fused": True})
    with pytest.raises(UserError, match=r"RMSprop.*fused"):
        build(module, config)


def test_a_device_without_a_fused_kernel_is_named():
    reason = fused_refusal(torch.optim.AdamW, torch.device("meta"), torch.float32)
    assert reason is not None
    assert "AdamW has none for meta" in reason


def test_capturable_is_refused_on_a_cpu(make_toy):
    with pytest.raises(UserError, match="on a CPU"):
        build(make_toy(), AdamWConfig(), capturable=True)


def test_capturable_is_refused_for_optimizers_without_such_a_form(make_toy):
    for config in (SGDConfig(fused=False), MuonConfig(fused=False)):
        module = make_toy().to("meta")
        annotated = annotate(module.named_parameters(), module.parameter_roles(), config)
        with pytest.raises(UserError, match="cannot be captured"):
            build_optimizer(config, annotated, "meta", capturable=True)


def test_capturable_puts_the_rates_into_tensors(make_toy):
    """On a device that is not a CPU; the meta device stands for one."""
    module = make_toy().to("meta")
    config = AdamWConfig(fused=False)
    annotated = annotate(module.named_parameters(), module.parameter_roles(), config)

    groups = build_optimizer(config, annotated, "meta", capturable=True).param_groups

    assert all(group["capturable"] and group["lr"].device.type == "meta" for group in groups)


def test_lbfgs_has_one_group_and_says_so(make_toy, caplog):
    caplog.set_level(logging.INFO)
    module = make_toy()
    optimizer = build(module, LBFGSConfig(lr=0.5, weight_decay=0.0, max_iter=20))
    target = torch.ones(8)

    def loss():
        optimizer.zero_grad()
        value = ((module.norm(module.embed) * module.scale - target) ** 2).sum()
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        value.backward()
        return value

    before = loss().item()
    optimizer.step(loss)

    assert "one group with rate 0.5 for all 14 tensors" in caplog.text
    (group,) = optimizer.param_groups
    assert (group["lr"], len(group["param_names"])) == (0.5, 14)
    assert loss().item() < 0.1 * before


def test_lbfgs_says_that_weight_decay_does_nothing(make_toy, caplog):
    build(make_toy(), LBFGSConfig(weight_decay=0.1))
    assert "weight_decay=0.1 does nothing" in caplog.text


def test_a_custom_class_gets_its_arguments_and_the_groups(make_toy):
    config = CustomOptimizerConfig(_target_="torch.optim.Adadelta", args={"rho": 0.5}, lr=1e-2)

    optimizer = build(make_toy(), config)

    assert type(optimizer) is torch.optim.Adadelta
    assert {group["rho"] for group in optimizer.param_groups} == {0.5}
    assert len(optimizer.param_groups) == 8


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        ("torch.optim.Nothing", {}, "cannot be imported"),
        ("AdamW", {}, "dotted path"),
        ("torch.nn.Linear", {}, "no subclass"),
        ("torch.optim.SGD", {"momentun": 0.9}, "momentun"),
        ("torch.optim.SGD", {"momentum": -1.0}, "momentum"),
    ],
)
def test_bad_custom_classes_are_refused(make_toy, target, args, message):
    with pytest.raises(UserError, match=message):
        build(make_toy(), CustomOptimizerConfig(_target_=target, args=args))


def test_nothing_to_train_is_refused(make_toy):
    module = make_toy().requires_grad_(False)
    with pytest.raises(UserError, match="no trainable parameter"):
        build(module, AdamWConfig())


def test_parameters_without_gradient_are_passed_over(make_toy):
    for config_class in CHANGED:
        if config_class is not LBFGSConfig:
            module = make_toy()
            build(module, config_class()).step()
            assert torch.equal(module.embed, make_toy().embed)


def test_modules_are_not_needed():
    """Anything with named parameters and roles will do."""
    parameter = nn.Parameter(torch.ones(2))
    annotated = annotate([("p", parameter)], {"p": ParameterRole("head", "weight")}, SGDConfig(lr=0.5))
    parameter.grad = torch.ones(2)
    build_optimizer(SGDConfig(lr=0.5, weight_decay=0.0), annotated, "cpu").step()
    assert parameter.tolist() == pytest.approx([0.5 - 0.5e-4] * 2)
