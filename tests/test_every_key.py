"""Every key of every config section does something: changed alone, it changes what is built from it.

Keys of optimizers, schedules, warmups and models are changed here. Those that only a whole run shows are listed with
the test file that shows it, which must name them; a key that is in no table fails.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
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

TESTS = Path(__file__).parent
LABELS = ("name",)
"""Names of the choice itself, as in `optimizer=adamw`."""


def values_that_differ(section: Any, changes: dict[str, Any], observe: Callable[[Any], str]) -> list[str]:
    """Fields whose other value changes nothing that is observed, or that have none in the table."""
    before, silent = observe(section), []
    for field in dataclasses.fields(section):
        if field.name not in LABELS:
            changed = field.name in changes and observe(
                dataclasses.replace(section, **{field.name: changes[field.name]})
            )
            silent += [field.name] * (not changed or changed == before)
    return silent


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
SHOWN_ELSEWHERE = {
    "pretrained": "commands/test_train_backbones.py", "lora_alpha": "models/test_lora.py",
    "lora_dropout": "models/test_lora.py",
}  # fmt: skip


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
    assert silent == list(SHOWN_ELSEWHERE)
    assert_named("model", SHOWN_ELSEWHERE)


# --------------------------------------------------------------------------------------------------------- whole runs
IN_RUNS: dict[type, dict[str, str]] = {
    config.TrainerConfig: {
        **dict.fromkeys(("epochs", "max_steps", "batch_size", "early_stopping"), "commands/test_train.py"),
        "deterministic": "commands/test_train.py",
        "accumulation_steps": "data/test_loader.py", "precision": "engine/test_step.py",
        "clip_norm": "engine/test_step.py", "device": "engine/test_precision.py",
        "memory_budget_gib": "engine/test_memory.py", "log_every_steps": "commands/test_replay.py",
        "max_bad_steps": "commands/test_replay.py", "spike_factor": "commands/test_replay.py",
        "on_oom": "engine/test_step.py", "checkpointing": "commands/test_train.py",
        "devices": "commands/test_processes.py", "timeout_minutes": "test_distributed.py",
    },
    config.EarlyStoppingConfig: {"patience": "commands/test_train.py", "min_delta": "engine/test_course.py"},
    config.EmaConfig: {"decay": "engine/test_averaging.py", "tau": "engine/test_averaging.py"},
    config.SwaConfig: {
        "start_epoch": "commands/test_train.py", "lr_factor": "optim/test_swa_scheduler.py",
        "anneal_epochs": "optim/test_swa_scheduler.py",
    },
    config.CheckpointConfig: {
        "every_steps": "engine/test_saver.py", "every_epochs": "engine/test_saver.py",
        "every_minutes": "engine/test_saver.py", "keep": "engine/test_saver.py",
    },
    config.LossConfig: {"class_weights": "test_criterion.py"},
    config.EvaluationConfig: {
        "every_epochs": "commands/test_replay.py", "max_dets": "evaluation/test_coco_metrics.py",
        "weights": "commands/test_train.py", "batch_size": "commands/test_train.py",
        "backend": "evaluation/test_coco_metrics.py",
    },
    config.FreezePartConfig: {"always": "commands/test_train.py", "until_epoch": "commands/test_train.py"},
    config.AugmentationConfig: {
        **dict.fromkeys(
            ("horizontal_flip", "resize_crop", "multi_scale", "iou_crop", "zoom_out",
             "zoom_out_most", "affine", "affine_degrees", "affine_scale", "affine_translate", "photometric",
             "photometric_strength", "min_visible", "min_box_px"),
            "data/test_transforms.py"),
        "vertical_flip": "data/test_transforms.py", "quarter_turn": "data/test_stages.py",
        **dict.fromkeys(("mosaic", "mixup", "copy_paste"), "data/test_stages.py"),
        "off_last_epochs": "test_config.py", "extra": "data/test_stages.py",
    },
    config.ShapesDataConfig: {
        "root": "data/test_reader.py", "format": "data/test_dataset.py", "classes": "data/test_build_split.py",
        **dict.fromkeys(("valid_fraction", "split_seed"), "data/test_dataset.py"),
        "allow_outside_root": "data/test_reader.py", "num_workers": "data/test_loader.py",
        **dict.fromkeys(("on_error", "max_megapixels"), "data/test_image_check.py"),
        **dict.fromkeys(("resize", "negatives", "background", "repeat_threshold"),
                        "commands/test_shapes_and_sampling.py"),
        **dict.fromkeys(("cache", "cache_dir"), "data/test_picture_cache.py"),
        **dict.fromkeys(("train_images", "valid_images", "image_size_px", "shapes_seed"), "data/test_shapes.py"),
    },
    config.LoggerConfig: {
        "progress": "loggers/test_progress.py", "group_norms": "commands/test_train.py",
        "plots": "commands/test_strangers.py", "sample_images": "commands/test_train.py",
        **dict.fromkeys(("trackers", "project", "wandb_mode", "mlflow_uri"), "loggers/test_trackers.py"),
    },
    config.EvaluateConfig: {
        **dict.fromkeys(("checkpoint", "batch_size", "devices"), "commands/test_processes.py"),
        "weights": "commands/test_shapes_and_sampling.py",
        **dict.fromkeys(("split", "data", "backend", "max_dets", "sample_images"), "commands/test_evaluate.py"),
        "device": "engine/test_precision.py", "precision": "engine/test_precision.py",
        "progress": "loggers/test_progress.py", "run_dir": "test_cli.py",
    },
    config.PredictConfig: {
        "weights": "commands/test_export.py",  # as in `export`
        **dict.fromkeys(("checkpoint", "source", "threshold", "classes", "batch_size", "tile_px",
                         "tile_overlap", "draw", "max_megapixels"), "commands/test_predict.py"),
        "device": "engine/test_precision.py", "precision": "engine/test_precision.py", "run_dir": "test_cli.py",
    },
    config.ExportConfig: {
        **dict.fromkeys(("checkpoint", "format", "opset", "weights"), "commands/test_export.py"),
        "run_dir": "test_cli.py",
    },
    config.TorchSchedulerConfig: {
        **dict.fromkeys(("_target_", "args", "interval", "monitor"), "optim/test_schedulers.py"),
    },
}  # fmt: skip


@pytest.mark.parametrize("section", IN_RUNS)
def test_every_key_of_a_run_is_in_the_table(section: type) -> None:
    table = IN_RUNS[section]
    keys = [field.name for field in dataclasses.fields(section) if field.name not in LABELS]
    assert sorted(keys) == sorted(table)
    assert_named(section.__name__, table)


def assert_named(section: str, table: dict[str, str]) -> None:
    missing = [
        f"{section}.{key}" for key, file in table.items() if key not in (TESTS / file).read_text(encoding="utf-8")
    ]
    assert missing == []
