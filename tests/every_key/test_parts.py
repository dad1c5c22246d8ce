"""Every key of optimizers, schedules, warmups and models, changed alone, changes what is built from it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from changed_keys import assert_named, values_that_differ
from torch import nn

from rfdetr_train import config
from rfdetr_train.config import ModelConfig, ParameterRule
from rfdetr_train.engine.course import RunLength
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import build_model
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.optim.schedules import build_schedule
from rfdetr_train.roles import ParameterRole
from rfdetr_train.schema import OPTIMIZERS, SCHEDULERS

# -------------------------------------------------------------------------------------------------------- optimizers
ROLES = {
    "encoder.weight": ParameterRole("encoder", "weight", 1, hidden_matrix=True),
    "encoder.bias": ParameterRole("encoder", "bias", 1),
    "decoder.weight": ParameterRole("decoder", "weight", hidden_matrix=True),
    "decoder.bias": ParameterRole("decoder", "bias"),
    "head.weight": ParameterRole("decoder", "weight", hidden_matrix=True),
    "head.bias": ParameterRole("decoder", "bias"),
}
OTHER_OPTIMIZER = {
    "lr": 3e-3, "encoder_lr": 7e-3, "layer_decay": 0.5, "component_decay": 0.3, "weight_decay": 0.3,
    "no_decay": "none", "merge_groups": False, "rules": [ParameterRule("decoder", lr_factor=2.0)],
    "betas": [0.5, 0.6], "eps": 0.1, "amsgrad": True, "fused": False, "foreach": False, "momentum": 0.3,
    "dampening": 0.5, "nesterov": True, "alpha": 0.5, "centered": True, "lr_decay": 0.5,
    "initial_accumulator_value": 0.5, "beta2_decay": -0.3, "d": 5.0, "max_iter": 2, "history_size": 1,
    "line_search": None, "momentum_decay": 0.1, "decoupled_weight_decay": False, "ns_steps": 2,
    "adjust_lr": "original", "_target_": "torch.optim.Adamax", "args": {"eps": 0.1},
}  # fmt: skip
LARGE = {"lr": 1e-2, "encoder_lr": 2e-2, "weight_decay": 1e-2}  # so that few steps tell
BASES: dict[str, dict[str, Any]] = {
    "custom": {"_target_": "torch.optim.Adadelta"}, "lbfgs": {"lr": 1.0, "max_iter": 6},
    "adamw": {"betas": [0.9, 0.3]}, "adam": {"betas": [0.9, 0.3]},
}  # fmt: skip
ONE_GROUP = ["encoder_lr", "layer_decay", "component_decay", "weight_decay", "no_decay", "merge_groups", "rules"]
REFUSED = {"lbfgs": ONE_GROUP, "rmsprop": ["fused"]}
"""Keys of the common section that do nothing here: any other value is refused, or warned of."""


def after_steps(section: Any) -> str:
    """Weights after a few steps of a regression, and how the optimizer was told to compute."""
    torch.manual_seed(0)
    module = nn.ModuleDict({"encoder": nn.Linear(4, 5), "decoder": nn.Linear(5, 5), "head": nn.Linear(5, 3)})
    inputs, wanted = torch.randn(16, 4), torch.randn(16, 3)
    optimizer = build_optimizer(section, annotate(list(module.named_parameters()), ROLES, section), torch.device("cpu"))

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = (module["head"](module["decoder"](module["encoder"](inputs).tanh())) - wanted).square().sum()
        value.backward()
        return value

    for _ in range(6):
        optimizer.step(loss)
    groups = [(group.get("fused"), group.get("foreach"), len(group["params"])) for group in optimizer.param_groups]
    return repr((groups, [parameter.tolist() for parameter in module.parameters()]))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_key_of_an_optimizer(name: str) -> None:
    names = {field.name for field in dataclasses.fields(OPTIMIZERS[name])}
    large = {key: value for key, value in LARGE.items() if name != "lbfgs" and key in names}
    section = OPTIMIZERS[name](**{**large, **BASES.get(name, {})})
    others = {**OTHER_OPTIMIZER, "nesterov": not getattr(section, "nesterov", False)}
    refused = REFUSED.get(name, [])
    here = {key: value for key, value in others.items() if key not in refused}
    assert values_that_differ(section, here, after_steps) == refused
    for key in set(refused) - {"weight_decay", "rules"}:
        with pytest.raises(UserError, match=f"optimizer.{key}="):
            dataclasses.replace(section, **{key: True if key == "fused" else others[key]})


def test_every_key_of_a_rule() -> None:
    """On its own it changes the steps of what its pattern finds; lr and lr_factor exclude each other."""
    base = OPTIMIZERS["adamw"](**LARGE, **BASES["adamw"])

    def after(rule: ParameterRule) -> str:
        return after_steps(dataclasses.replace(base, rules=[rule]))

    others = {"pattern": "head", "lr": 3e-3, "lr_factor": 0.3, "weight_decay": 0.9}
    assert values_that_differ(ParameterRule("decoder", weight_decay=0.5), others, after) == []


# --------------------------------------------------------------------------------------------------------- schedules
OTHER_SCHEDULE = {
    "min_factor": 0.3, "power": 3.0, "decay_fraction": 0.4, "flat_fraction": 0.2, "drop_epochs": [2.0], "factor": 0.3,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "torch"])
def test_every_key_of_a_schedule(name: str) -> None:
    def rates(section: Any) -> str:
        schedule = build_schedule(section, warmup_steps=0, total_steps=40, steps_per_epoch=10)
        assert schedule is not None
        return repr([schedule(step) for step in range(40)])

    start = {"drop_epochs": [1.0]} if name == "step" else {}
    assert values_that_differ(SCHEDULERS[name](**start), OTHER_SCHEDULE, rates) == []


def test_every_key_of_a_warmup() -> None:
    length = RunLength(steps_per_epoch=10, epochs=4)
    section = config.LinearWarmupConfig()
    assert values_that_differ(section, {"epochs": 2.0, "steps": 7}, lambda s: str(length.warmup_steps(s))) == []


# ------------------------------------------------------------------------------------------------------------- model
OTHER_MODEL = {
    "resolution": 128, "resolution_width": 128, "backbone": "vit_tiny_patch16_224", "input_channels": 1,
    "encoder_width": 36, "encoder_depth": 3, "encoder_heads": 3, "patch_size": 16, "position_grid": 5,
    "num_windows": 1, "feature_blocks": [2], "levels": ["P3", "P4"], "lora_rank": 2, "hidden_dim": 64,
    "decoder_layers": 1, "self_attention_heads": 4, "cross_attention_heads": 4, "sampling_points": 3, "ffn_dim": 48,
    "num_queries": 12, "group_detr": 3,
}  # fmt: skip
NOT_HERE = {
    "pretrained": "commands/test_train_backbones.py",  # other weights to start from, which are downloaded
    **dict.fromkeys(("lora_alpha", "lora_dropout"), "every_key/test_runs.py"),  # adapters are 0 before the first step
}


def test_every_key_of_a_model(small_config: Callable[..., ModelConfig]) -> None:
    def answer(section: ModelConfig) -> str:
        torch.manual_seed(0)
        model = build_model(section, 3).eval()
        torch.manual_seed(1)
        picture = torch.randn(1, section.input_channels, *section.size_px)
        with torch.no_grad():
            outputs = model(picture)
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        return repr((shapes, picture.shape, outputs["logits"].tolist(), outputs["boxes_cxcywh"].tolist()))

    section = small_config()
    silent = values_that_differ(section, OTHER_MODEL, answer)
    assert silent == list(NOT_HERE)
    assert_named("model", NOT_HERE)
