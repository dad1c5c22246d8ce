"""Checkpoints of any origin as the dict that ours are: also those of the reference package, as far as they go.

The reference (rfdetr 1.0 to 1.11) writes `.pth` files with `model`, `args` and, before 1.6, `optimizer`, `lr_scheduler`
and `ema_model`; and `.ckpt` files of PyTorch Lightning. Nothing in them is called or imported, `args` are only read.
"""

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torchvision.models import get_model_weights

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.fit import LogitNames
from rfdetr_train.checkpoint.reference_weights import (
    from_reference,
    reference_groups,
    reference_names,
    reference_order,
)
from rfdetr_train.checkpoint.saved_optimizer import with_names
from rfdetr_train.errors import UserError
from rfdetr_train.labels import LabelMap
from rfdetr_train.state_dicts import State

log = logging.getLogger(__name__)

RECIPE = {
    "optimizer.name": "optimizer", "optimizer.lr": "lr", "optimizer.encoder_lr": "lr_encoder",
    "optimizer.weight_decay": "weight_decay", "optimizer.layer_decay": "lr_vit_layer_decay",
    "optimizer.component_decay": "lr_component_decay", "scheduler.name": "lr_scheduler",
    "warmup.epochs": "warmup_epochs", "trainer.epochs": "epochs", "trainer.batch_size": "batch_size",
    "trainer.accumulation_steps": "grad_accum_steps", "trainer.clip_norm": "clip_max_norm",
    "ema.decay": "ema_decay", "ema.tau": "ema_tau",
}  # fmt: skip
"""Our key -> the reference's, of what makes a run go as it does."""
SIZES = {
    "resolution": "resolution", "patch_size": "patch_size", "position_grid": "positional_encoding_size",
    "num_windows": "num_windows", "feature_blocks": "out_feature_indexes", "hidden_dim": "hidden_dim",
    "decoder_layers": "dec_layers", "self_attention_heads": "sa_nheads", "cross_attention_heads": "ca_nheads",
    "sampling_points": "dec_n_points", "num_queries": "num_queries", "group_detr": "group_detr",
}  # fmt: skip
"""Our key of the model -> the reference's."""
COMMON_SIZES = {
    "encoder": "dinov2_windowed_small", "hidden_dim": 256, "sa_nheads": 8, "ca_nheads": 16, "dec_n_points": 2,
    "num_queries": 300, "group_detr": 13,
}  # fmt: skip
VARIANT_SIZES = {
    "RFDETRNano": (384, 24, 16, 2, 2, [3, 6, 9, 12]),
    "RFDETRSmall": (512, 32, 16, 2, 3, [3, 6, 9, 12]),
    "RFDETRMedium": (576, 36, 16, 2, 4, [3, 6, 9, 12]),
    "RFDETRLarge": (704, 44, 16, 2, 4, [3, 6, 9, 12]),
    "RFDETRBase": (560, 37, 14, 4, 3, [2, 5, 8, 11]),
}
"""What a file means that has `model_name` and no sizes; VARIANT_KEYS names the columns."""
VARIANT_KEYS = ("resolution", "positional_encoding_size", "patch_size", "num_windows", "dec_layers",
                "out_feature_indexes")  # fmt: skip
# The 80 classes of COCO (arXiv 1405.0312) and their sparse category ids, which the published class logits follow.
_CATEGORIES = get_model_weights("fasterrcnn_resnet50_fpn").DEFAULT.meta["categories"]

COCO_LOGITS = tuple(None if name in ("__background__", "N/A") else name for name in _CATEGORIES)
"""What each of the 91 logits of a published model stands for; None for an id that COCO does not use."""
COCO_NAMES = {category_id: name for category_id, name in enumerate(COCO_LOGITS) if name}
"""Category id, 1 to 90, -> name."""
LOGITS_BY_CATEGORY_ID = ("coco", "o365")
"""The reference's data formats in which logit k is category id k, whatever the list of names."""


def read_checkpoint(path: Path, mapped: bool = True) -> State:
    """One of our checkpoints, or a file of the reference as far as it goes, with the `class_names` of the logits.

    Of the reference there are `model`, `ema`, `optimizer` and `scheduler` (None where the file has none), `loop` and
    `model_config`; `sources`, from our names to those in the optimizer's groups; and `recipe`, our key -> its value.
    """
    content = files.load_untrusted(path, extra_types=(argparse.Namespace,))
    if "loop" in content:
        saved = files.load(path, mapped)
        with files.reading(path):
            return {**saved, "class_names": (*LabelMap.from_plain(saved["label_map"]).names, None)}
    if not isinstance(content.get("model", content.get("state_dict")), dict):
        raise UserError(f"{path}: neither a checkpoint of rfdetr_train nor one of the reference package")
    with files.reading(path, "no file as the reference package writes it"):
        return _from_reference(content, path)


def read_run(path: Path) -> State:
    """A checkpoint that a run can go on from."""
    saved = read_checkpoint(path, mapped=False)  # the run, whose moments these become, replaces the file
    if not saved.get("optimizer") or not saved.get("scheduler"):
        raise UserError(
            f"resume={path}: holds weights but not the states of optimizer and scheduler; resume from the last.ckpt or "
            f"checkpoint_N.ckpt of that run, or begin a new one from these weights: weights={path}"
        )
    return saved


def known_classes(saved: State, path: Path) -> tuple[LabelMap, list[int]]:
    """The classes of a detector of the reference, and their logits, behind them one that has no class.

    The ids are COCO's where the logits are COCO's, else the places of the names, from 0. Raises UserError where the
    file does not tell the classes or the sizes of its model.
    """
    names = saved["class_names"] or ()
    named = [logit for logit, name in enumerate(names) if name]
    if not named or saved["model_config"] is None:
        lacks = "the sizes of its model" if named else "which logit is which class"
        raise UserError(f"{path}: does not tell {lacks}; a run can begin from its weights: weights={path}")
    ids = named if tuple(names) == tuple(COCO_LOGITS) else range(len(named))
    return LabelMap(tuple(ids), tuple(names[logit] for logit in named)), [*named, names.index(None)]


def model_config_from_reference(args: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `ModelConfig` takes, from the reference's arguments; None where they do not tell all sizes.

    Those that are missing are the ones of the variant that `model_name` names.
    """
    if sizes := VARIANT_SIZES.get(str(args.get("model_name"))):
        args = {**COMMON_SIZES, **dict(zip(VARIANT_KEYS, sizes, strict=True)), **args}
    encoder = str(args.get("encoder", ""))
    if any(args.get(theirs) is None for theirs in SIZES.values()) or not encoder.startswith("dinov2_windowed_"):
        return None
    return {
        "name": str(args.get("model_name") or "reference"),
        "backbone": f"vit_{encoder.removeprefix('dinov2_windowed_')}_patch14_dinov2",
        "ffn_dim": args.get("dim_feedforward", 2048),
        **{ours: args[theirs] for ours, theirs in SIZES.items()},
    }


def _from_reference(content: State, path: Path) -> State:
    args = _arguments(content)
    model = content["model"] if "model" in content else _under("model.", content["state_dict"])
    optimizer = content.get("optimizer") or next(iter(content.get("optimizer_states", [])), None)
    scheduler = content.get("lr_scheduler") or next(iter(content.get("lr_schedulers", [])), None)
    if scheduler and "lr_lambdas" in scheduler:
        scheduler = {**scheduler, "kind": "LambdaLR"}
    weights = _translated(model, path)
    return {
        "model": weights,
        "ema": _average(content, scheduler, path),
        "optimizer": _named(optimizer, model, args) if optimizer else None,
        "scheduler": scheduler,
        "scaler": None,
        "loop": _loop(content, scheduler),
        "random": None,
        "model_config": model_config_from_reference(args),
        "class_names": _logit_names(args, len(weights.get("class_embed.bias", ())), path),
        "counts": None,
        "config": None,
        "sources": {name: reference_names(name) for name in weights},
        "recipe": _recipe(args, optimizer),
    }


def _arguments(content: State) -> dict[str, Any]:
    args = content.get("args") or content.get("hyper_parameters") or {}
    args = vars(args) if isinstance(args, argparse.Namespace) else args
    return {"model_name": content.get("model_name"), **args, **(content.get("model_config") or {})}


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What Lightning keeps under `prefix`, of a compiled model too."""
    names = {name: name.removeprefix(prefix).removeprefix("_orig_mod.") for name in state if name.startswith(prefix)}
    return {bare: state[name] for name, bare in names.items()}


def _translated(model: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    try:
        return from_reference(model)
    except UserError as error:
        raise UserError(f"{path}: these are not the weights of an RF-DETR detector: {error}") from error


def _average(content: State, scheduler: State | None, path: Path) -> State | None:
    """Beside a `model` that was chosen as the best, Lightning's average is of no account."""
    state, updates = content.get("ema_model"), (scheduler or {}).get("last_epoch", 1)
    for callback in {} if "model" in content else content.get("callbacks", {}).values():
        if average := callback.get("average_model_state_dict"):
            state, updates = _under("module.model.", average), int(average["n_averaged"])
    return {"kind": "ema", "model": _translated(state, path), "num_updates": updates} if state else None


def _named(optimizer: State, model: Mapping[str, Tensor], args: Mapping[str, Any]) -> State:
    """Older releases have a group for each parameter, newer ones join those of equal hyperparameters."""
    order = reference_order(name for name in model if name != "_kp_active_mask")
    groups = reference_groups(
        order,
        layer_decay=args.get("lr_vit_layer_decay", 0.8),
        component_decay=args.get("lr_component_decay", 0.7),
        weight_decay=args.get("weight_decay", 1e-4),
    )
    return with_names(with_names(optimizer, [[name] for name in order]), groups)


def _loop(content: State, scheduler: State | None) -> State:
    """Where the run stood, as our `loop` tells it; an epoch that had not ended begins again."""
    fit = content.get("loops", {}).get("fit_loop")
    if fit:
        epochs = fit["epoch_progress"]["total"]
        epoch = epochs["started" if fit["epoch_loop.batch_progress"]["is_last_batch"] else "processed"]
    else:
        epoch = content.get("epoch", -1) + 1
    step = content.get("global_step", (scheduler or {}).get("last_epoch", 0))
    return {
        "epoch": epoch, "position": 0, "step": step, "evaluation_pending": False, "best": None, "last": None,
        "evaluations_without_gain": 0, "stopped_early": False, "seconds_before": 0.0,
        "skipped_steps": 0, "skipped_in_a_row": 0,
    }  # fmt: skip


def _logit_names(args: Mapping[str, Any], num_logits: int, path: Path) -> LogitNames | None:
    """From the names in the order of the labels; 91 logits without other names are COCO's category ids."""
    names = args.get("class_names")
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        return COCO_LOGITS if num_logits == len(COCO_LOGITS) else None
    if num_logits == len(COCO_LOGITS) and names == list(COCO_NAMES.values()):
        return COCO_LOGITS
    if len(names) + 1 != num_logits or args.get("dataset_file") in LOGITS_BY_CATEGORY_ID:
        log.warning("%s: which of its %d logits is which of its %d classes is not known", path, num_logits, len(names))
        return (None,) * num_logits
    return (*(name or None for name in names), None)


def _recipe(args: Mapping[str, Any], optimizer: State | None) -> dict[str, Any]:
    recipe = {ours: args[theirs] for ours, theirs in RECIPE.items() if args.get(theirs) is not None}
    settings = {**args, **(args.get("lr_scheduler_kwargs") or {})}
    if recipe.get("scheduler.name") == "cosine":
        recipe["scheduler.min_factor"] = settings.get("min_factor", settings.get("lr_min_factor", 0.0))
    elif recipe.get("scheduler.name") == "step":
        recipe["scheduler.drop_epochs"] = [float(settings.get("lr_drop", 100))]
    if not recipe and optimizer:  # an older .ckpt has no arguments; the first group is that of the full rate
        first = optimizer["param_groups"][0]
        recipe = {"optimizer.lr": first.get("initial_lr", first["lr"]), "optimizer.weight_decay": first["weight_decay"]}
    return recipe
