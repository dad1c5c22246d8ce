"""`python -m rfdetr_train replay RUN/nonfinite-step-N.pt`: a step that diverged, made again and looked into."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from rfdetr_train.checkpoint import files
from rfdetr_train.checkpoint.environment import restore_random_state
from rfdetr_train.config import ModelConfig
from rfdetr_train.criterion import Criterion
from rfdetr_train.data.sample import Batch
from rfdetr_train.engine.freezing import hold_statistics
from rfdetr_train.engine.precision import Precision, choose_device
from rfdetr_train.engine.step import TrainStep
from rfdetr_train.errors import UserError, listed
from rfdetr_train.loggers.console import print_table, write_line
from rfdetr_train.matcher import match
from rfdetr_train.models.rfdetr import RFDETR, build_model


def replay(arguments: list[str]) -> None:
    """Show the parts of the loss, and which weights, outputs and gradients are not finite, the first ones first.

    The step has the weights, pictures, precision, loss scale and random numbers of the run; of several processes,
    which had numbers of their own, those of the main one. On a processor without the run's fp16 it is made in fp32.
    """
    if len(arguments) != 1:
        raise UserError("replay: name one file, python -m rfdetr_train replay RUN/nonfinite-step-N.pt")
    path = Path(arguments[0]).expanduser()
    saved = files.load(path)
    if "window" not in saved:
        raise UserError(f"replay: {path} is a checkpoint without pictures; give the nonfinite-step-N.pt of a run")
    device = choose_device("auto")
    as_in_run = saved["precision"] != "fp16" or device.type != "cpu"
    precision = Precision(saved["precision"] if as_in_run else "fp32", device)
    model = load_trained_part(saved).to(device)
    step = build_step(saved, model, precision)
    outputs, gradients = watch(model)
    window = [Batch(batch["images"], batch["targets"]) for batch in saved["window"]]
    restore_random_state(saved["random"])  # last of all: what is built draws too
    result = step(window)

    was = "" if as_in_run else f", in the run {saved['precision']}"
    write_line(f"step {saved['loop']['step'] + 1} again on {device} in {precision.name}{was}, on {saved['pictures']}")
    losses = [[name, value] for name, value in result.losses.items()]
    print_table("loss", ["part", "value"], [*losses, ["gradient norm", result.grad_norm]])
    weights = files.nonfinite(model.state_dict())
    for what, names in (("weights", weights), ("outputs", outputs), ("gradients", gradients)):
        found = f"first in {names[0]}; in all {len(names)}: {listed(names)}" if names else "none"
        write_line(f"{what} that are not finite: {found}")


def load_trained_part(saved: dict[str, Any]) -> RFDETR:
    """The model of the file; only what the run trained takes gradients."""
    model = build_model(ModelConfig(**saved["model_config"]), len(saved["label_map"]))
    model.load_state_dict(saved["model"])
    trained = {name for group in saved["optimizer"]["param_groups"] for name in group["param_names"]}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    hold_statistics(model)
    return model


def build_step(saved: dict[str, Any], model: RFDETR, precision: Precision) -> TrainStep:
    """The step of the run, under a rate of 0."""
    if saved["scaler"] and precision.scaler.is_enabled():
        precision.scaler.load_state_dict(saved["scaler"])
    criterion = Criterion(model.config.num_queries, match, class_weights=saved["class_weights"])
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.0)
    step = TrainStep(model, criterion, optimizer, precision)
    step.pieces.of_each = saved.get("pieces", 1)  # of an older release
    return step


def watch(model: nn.Module) -> tuple[list[str], list[str]]:
    """Two lists that fill in a step: modules whose output is not finite as they come in the forward pass, and
    parameters whose gradient is not, as they come in the backward pass."""
    outputs: list[str] = []
    gradients: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(partial(_note, outputs, name or "the detector"))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: _note(gradients, name, p.grad))
    return outputs, gradients


def _note(names: list[str], name: str, *looked_at: Any) -> None:
    """The last of `looked_at`, a tensor or containers of some, decides."""
    # detached, since what is computed anew in the backward pass must keep the same tensors as at first
    tensors = [leaf.detach() for leaf in tree_leaves(looked_at[-1]) if torch.is_tensor(leaf)]
    if name not in names and not all(tensor.isfinite().all() for tensor in tensors):
        names.append(name)
