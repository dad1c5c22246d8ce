"""The optimizer that the config names, on the parameter groups that all share; parts that join it while it runs."""

import inspect
import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop

from rfdetr_train.config import CustomOptimizerConfig, OptimizerConfig
from rfdetr_train.dotted_path import locate
from rfdetr_train.errors import UserError
from rfdetr_train.optim.algorithms import Lion, MuonWithAdamW
from rfdetr_train.optim.param_groups import AnnotatedParameter, group
from rfdetr_train.optim.schedulers import ManagedScheduler

log = logging.getLogger(__name__)

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "adamw": AdamW,
    "adam": Adam,
    "sgd": SGD,
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
    "nadam": NAdam,
    "radam": RAdam,
    "adafactor": Adafactor,
    "lbfgs": LBFGS,
    "muon": MuonWithAdamW,
    "lion": Lion,
}
TORCH_NAMES = {"line_search": "line_search_fn", "adjust_lr": "adjust_lr_fn"}
SHARED_FIELDS = {field.name for field in fields(OptimizerConfig)}


def build_optimizer(
    config: OptimizerConfig,
    annotated: Sequence[AnnotatedParameter],
    device: torch.device | str,
    *,
    capturable: bool = False,
) -> Optimizer:
    """The config's optimizer over the annotated parameters, which are on `device` already.

    capturable keeps step counts and learning rates in float32 tensors on the device, where a step inside a CUDA graph
    wants them; refused on a CPU and for optimizers without such a form. Raises UserError for what the optimizer lacks.
    """
    if not annotated:
        raise UserError(f"optimizer={config.name}: there is no trainable parameter; freeze fewer parts")
    device = torch.device(device)
    kwargs = optimizer_kwargs(config)
    optimizer_class = _class_of(config)
    if optimizer_class is LBFGS:
        return _build_lbfgs(config, annotated, kwargs)
    groups = group(annotated, config.merge_groups, split_hidden_matrices=optimizer_class is MuonWithAdamW)
    kernel_class = AdamW if optimizer_class is MuonWithAdamW else optimizer_class
    if not isinstance(config, CustomOptimizerConfig):
        _settle_fused(kwargs, kernel_class, device, annotated[0].parameter.dtype)
    if capturable:
        _settle_capturable(kwargs, groups, optimizer_class, device)
    if optimizer_class is MuonWithAdamW:
        adamw: dict[str, Any] = {key: kwargs.pop(key) for key in ("betas", "eps", "fused") if key in kwargs}
        return MuonWithAdamW(groups, kwargs, adamw)
    if "lr" in inspect.signature(optimizer_class).parameters:
        kwargs = {"lr": config.lr, **kwargs}  # wanted by classes without a default; each group carries its own
    try:
        return optimizer_class(groups, **kwargs)
    except (TypeError, ValueError) as error:
        name = optimizer_class.__name__
        raise UserError(f"optimizer={config.name}: {name} refuses its arguments: {error}") from error


def optimizer_kwargs(config: OptimizerConfig) -> dict[str, Any]:
    """The config's own keys under torch's names: all but those shared by every optimizer, which the groups carry."""
    if isinstance(config, CustomOptimizerConfig):
        for key in {"lr", "weight_decay", "params"} & set(config.args):
            raise UserError(f"optimizer.args.{key}: does nothing, every group carries its own; use optimizer.{key}")
        return dict(config.args)
    own = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in SHARED_FIELDS}
    if "betas" in own:
        own["betas"] = tuple(own["betas"])
    return {TORCH_NAMES.get(key, key): value for key, value in own.items()}


def fused_refusal(optimizer_class: type[Optimizer], device: torch.device, dtype: torch.dtype) -> str | None:
    """Why torch has no fused step for this optimizer, device and dtype; None if it has one. Found out by one step."""
    if "fused" not in inspect.signature(optimizer_class).parameters:
        return f"{optimizer_class.__name__} has no fused form"
    probe = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
    probe.grad = torch.zeros_like(probe)
    try:
        optimizer_class([probe], lr=0.0, fused=True).step()  # type: ignore[call-arg]
    except (RuntimeError, NotImplementedError) as error:
        return f"{optimizer_class.__name__} has none for {device.type} and {dtype} ({str(error).splitlines()[0]})"
    return None


def _class_of(config: OptimizerConfig) -> type[Optimizer]:
    if not isinstance(config, CustomOptimizerConfig):
        if config.name not in OPTIMIZERS:
            raise UserError(f"optimizer={config.name}: choose one of {', '.join([*OPTIMIZERS, 'custom'])}")
        return OPTIMIZERS[config.name]
    optimizer_class = locate(config._target_, "optimizer._target_")
    if not (inspect.isclass(optimizer_class) and issubclass(optimizer_class, Optimizer)):
        raise UserError(f"optimizer._target_={config._target_}: is no subclass of torch.optim.Optimizer")
    return optimizer_class


def _settle_fused(
    kwargs: dict[str, Any], optimizer_class: type[Optimizer], device: torch.device, dtype: torch.dtype
) -> None:
    """Turn `auto` into a yes or no with its reason; refuse a `true` that torch cannot serve."""
    asked = kwargs.pop("fused", "auto")
    reason = fused_refusal(optimizer_class, device, dtype)
    if reason is None and kwargs.get("foreach"):
        reason = "optimizer.foreach=true excludes it"
    if asked is True and reason:
        raise UserError(f"optimizer.fused=true: {reason}; use optimizer.fused=auto")
    if asked == "auto":
        log.info("fused optimizer step: %s", f"no, {reason}" if reason else "yes")
    if "fused" in inspect.signature(optimizer_class).parameters:
        kwargs["fused"] = asked is not False and reason is None


def _settle_capturable(
    kwargs: dict[str, Any], groups: list[dict[str, Any]], optimizer_class: type[Optimizer], device: torch.device
) -> None:
    if device.type == "cpu" or "capturable" not in inspect.signature(optimizer_class).parameters:
        where = "on a CPU" if device.type == "cpu" else f"with {optimizer_class.__name__}"
        raise UserError(f"optimizer: a step cannot be captured in a graph {where}; run it without")
    kwargs["capturable"] = True
    for one_group in groups:
        one_group["lr"] = torch.tensor(one_group["lr"], device=device)


def _build_lbfgs(config: OptimizerConfig, annotated: Sequence[AnnotatedParameter], kwargs: dict[str, Any]) -> LBFGS:
    """L-BFGS knows one group, one rate and no weight decay."""
    log.info("lbfgs: one group with rate %g for all %d tensors, no layer-wise rates", config.lr, len(annotated))
    if config.weight_decay:
        log.warning("lbfgs: has no weight decay; optimizer.weight_decay=%g does nothing", config.weight_decay)
    if config.rules:
        log.warning("lbfgs: has one group; the %d optimizer.rules do nothing", len(config.rules))
    named = [(item.name, item.parameter) for item in annotated]
    names, params = zip(*named, strict=True)
    return LBFGS([{"params": params, "param_names": list(names), "group_name": "all", "lr": config.lr}], **kwargs)


def check_can_join(optimizer: Optimizer, scheduler: ManagedScheduler) -> None:
    """Refuse, before training, an optimizer or scheduler that no part can join later."""
    if isinstance(optimizer, LBFGS):
        raise UserError("freeze: lbfgs has one fixed group, so no part can join later; freeze it throughout")
    scheduler.check_extensible()


def join(
    optimizer: Optimizer, scheduler: ManagedScheduler, annotated: Sequence[AnnotatedParameter], merge: bool
) -> None:
    """Add the parameters as new groups, with the rates that they would have by now had they trained from the start.

    Their moments start empty. Raises UserError where `check_can_join` does.
    """
    check_can_join(optimizer, scheduler)
    first = len(optimizer.param_groups)
    taken = {one_group["group_name"] for one_group in optimizer.param_groups if "group_name" in one_group}
    groups = group(annotated, merge, split_hidden_matrices=isinstance(optimizer, MuonWithAdamW))
    for one_group in groups:
        while one_group["group_name"] in taken:
            one_group["group_name"] += ".joined"
        optimizer.add_param_group(one_group)
    if isinstance(optimizer, Adagrad):
        _fill_sums(optimizer, first)
    scheduler.add_groups(first)


def _fill_sums(optimizer: Adagrad, first: int) -> None:
    """Adagrad makes its state when it is built, and only then."""
    for one_group in optimizer.param_groups[first:]:
        own = {key: value for key, value in one_group.items() if key in optimizer.defaults}
        fresh = Adagrad(one_group["params"], **own)
        optimizer.state.update(fresh.state)
