"""Explicit torch schedulers: built from dotted paths, nested, with an exact linear warmup in front.

torch 2.14 computes some compositions wrongly without a word. Those that have an equal flat form are flattened; the
others are refused, each with the reason found by running it.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from rfdetr_train.config import TorchSchedulerConfig
from rfdetr_train.dotted_path import locate
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

WAITS = "it waits for a metric; give it alone, with scheduler.interval=evaluation"
REFUSED_IN_SEQUENCE: dict[type, str] = {
    ChainedScheduler: "torch raises NotImplementedError when it begins at a milestone, and in front it is a step early",
    OneCycleLR: "it rewrites every group's initial rate, the warmup's too; it rises by itself (pct_start)",
    CyclicLR: "it sets rates of its own, so the rate jumps at its start; it rises by itself",
    ReduceLROnPlateau: WAITS,
}
OVERWRITES = "it computes from %s and overwrites what the other schedulers did"
REFUSED_IN_CHAIN: dict[type, str] = {
    SequentialLR: "at a milestone it overwrites what the other schedulers did",
    **dict.fromkeys((LambdaLR, CosineAnnealingWarmRestarts), OVERWRITES % "the initial rate"),
    **dict.fromkeys((OneCycleLR, CyclicLR), OVERWRITES % "its own rates"),
    ReduceLROnPlateau: WAITS,
}
PER_GROUP_ARGUMENTS = ("lr_lambda", "min_lr", "max_lr", "base_lr", "base_momentum", "max_momentum")
"""Arguments of torch schedulers that may be a list over the groups."""

SAMPLED_STEPS = range(0, 20_000, 7)
"""Where two functions of the step are compared."""
LATE_MULTIPLICATIVE = "at its milestone it multiplies once too often; use ExponentialLR or LambdaLR"


@dataclass(frozen=True)
class Plan:
    """A scheduler that is not built yet."""

    scheduler_class: type[LRScheduler]
    args: dict[str, Any]

    @property
    def name(self) -> str:
        return self.scheduler_class.__name__


def build_torch_scheduler(
    optimizer: Optimizer,
    config: TorchSchedulerConfig,
    *,
    warmup_steps: int,
    parameter_order: Sequence[str] | None = None,
) -> LRScheduler:
    """The config's scheduler behind `warmup_steps` of linear warmup (0 for none).

    parameter_order: names in the order of a per-parameter list such as `lr_lambda`; None allows one entry per group.
    """
    plan = _plan(config._target_, config.args, "scheduler")
    _check_interval(plan, config)
    if plan.scheduler_class is ReduceLROnPlateau and "mode" not in plan.args:
        plan.args["mode"] = "min" if "loss" in config.monitor else "max"
        log.info("ReduceLROnPlateau: %s of %s counts as better", plan.args["mode"], config.monitor)
    _check_chains(plan)
    if warmup_steps == 0 and plan.scheduler_class is not SequentialLR:
        return _build(plan, optimizer, parameter_order)
    pieces = _pieces(plan, start=warmup_steps)
    _check_sequence(pieces, warmup_steps)
    schedulers = [_build(piece, optimizer, parameter_order) for _, piece in pieces]
    milestones = [start for start, _ in pieces[1:]]
    if warmup_steps:
        schedulers.insert(0, linear_warmup(optimizer, warmup_steps))
        milestones.insert(0, warmup_steps)
    return SequentialLR(optimizer, schedulers, milestones)


def linear_warmup(optimizer: Optimizer, warmup_steps: int) -> LinearLR:
    """Step w uses (w + 1) / W of the rate, so W - 1 increments lead from 1 / W to 1; W = 1 is full at once."""
    return LinearLR(optimizer, start_factor=1.0 / warmup_steps, total_iters=max(1, warmup_steps - 1))


def _plan(target: str, args: Mapping[str, Any], key: str) -> Plan:
    scheduler_class = locate(target, f"{key}._target_")
    if not (isinstance(scheduler_class, type) and issubclass(scheduler_class, LRScheduler)):
        raise UserError(f"{key}._target_={target}: is no scheduler class of torch.optim.lr_scheduler")
    return Plan(scheduler_class, {name: _resolved(value, f"{key}.args.{name}") for name, value in args.items()})


def _resolved(value: Any, key: str) -> Any:
    """Replace each nested `_target_`: a scheduler class by its plan, anything else by what calling it returns."""
    if isinstance(value, Mapping) and "_target_" in value:
        arguments = {name: item for name, item in value.items() if name != "_target_"}
        target = locate(value["_target_"], f"{key}._target_")
        if isinstance(target, type) and issubclass(target, LRScheduler):
            return _plan(value["_target_"], arguments, key)
        return target(**arguments)
    if isinstance(value, list | tuple):
        return [_resolved(item, f"{key}[{index}]") for index, item in enumerate(value)]
    if key.split(".")[-1].startswith("lr_lambda") and isinstance(value, str):
        return locate(value, key)
    return value


def _check_interval(plan: Plan, config: TorchSchedulerConfig) -> None:
    plateau = issubclass(plan.scheduler_class, ReduceLROnPlateau)
    if plateau and config.interval != "evaluation":
        raise UserError(f"scheduler.interval={config.interval}: ReduceLROnPlateau wants scheduler.interval=evaluation")
    if config.interval == "evaluation" and not plateau:
        raise UserError(f"scheduler.interval=evaluation: {plan.name} takes no metric; use step or epoch")


def _pieces(plan: Plan, start: int) -> list[tuple[int, Plan]]:
    """The flat form: (first step, scheduler) in order. A piece that a later milestone overtakes is never reached."""
    if plan.scheduler_class is not SequentialLR:
        return [(start, plan)]
    children, milestones = plan.args.get("schedulers", []), list(plan.args.get("milestones", []))
    if len(milestones) != len(children) - 1:
        raise UserError(
            f"scheduler.args.milestones={milestones}: {len(children)} schedulers want {len(children) - 1} milestones"
        )
    if milestones != sorted(milestones):
        raise UserError(f"scheduler.args.milestones={milestones}: give rising steps")
    flat: list[tuple[int, Plan]] = []
    for child, first in zip(children, [0, *milestones], strict=True):
        flat = [piece for piece in flat if piece[0] < start + first] + _pieces(child, start + first)
    return flat


def _check_sequence(pieces: list[tuple[int, Plan]], warmup_steps: int) -> None:
    for start, piece in pieces:
        reason = _refusal(piece, REFUSED_IN_SEQUENCE)
        if start > 0 and issubclass(piece.scheduler_class, MultiplicativeLR):
            reason = LATE_MULTIPLICATIVE
        if reason:
            place = "behind warmup" if warmup_steps else "inside SequentialLR"
            raise UserError(f"scheduler={piece.name} {place}: {reason}")


def _check_chains(plan: Plan) -> None:
    children = [child for child in plan.args.get("schedulers", []) if isinstance(child, Plan)]
    for child in children:
        reason = _refusal(child, REFUSED_IN_CHAIN) if plan.scheduler_class is ChainedScheduler else None
        if reason:
            raise UserError(f"scheduler={child.name} inside ChainedScheduler: {reason}")
        _check_chains(child)


def _refusal(plan: Plan, refused: dict[type, str]) -> str | None:
    return next((reason for kind, reason in refused.items() if issubclass(plan.scheduler_class, kind)), None)


def _build(plan: Plan, optimizer: Optimizer, parameter_order: Sequence[str] | None) -> LRScheduler:
    args = dict(plan.args)
    if issubclass(plan.scheduler_class, OneCycleLR):
        args.setdefault("max_lr", [group["lr"] for group in optimizer.param_groups])  # keeps the layer-wise rates
    for name, value in args.items():
        if isinstance(value, list) and name in PER_GROUP_ARGUMENTS:
            args[name] = per_group(f"scheduler.args.{name}", value, optimizer, parameter_order)
    if "schedulers" in args:
        args["schedulers"] = [_build(child, optimizer, parameter_order) for child in args["schedulers"]]
    try:
        if plan.scheduler_class is ChainedScheduler:
            return ChainedScheduler(args["schedulers"], optimizer=optimizer)
        return plan.scheduler_class(optimizer, **args)
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(f"scheduler={plan.name}: refuses its arguments: {error}") from error


def per_group(
    key: str, values: Sequence[Any], optimizer: Optimizer, parameter_order: Sequence[str] | None = None
) -> list[Any]:
    """`values` with one entry per group of the optimizer.

    A list with one entry per trained parameter (the layout of runs that had a group for each) is collapsed where the
    entries of each group agree; parameter_order gives the order of their names, and may hold others. Raises UserError
    with both numbers for another length, and with both names where entries differ.
    """
    groups = optimizer.param_groups
    if len(values) == len(groups):
        return list(values)
    trained = {name for group in groups for name in group.get("param_names", [])}
    order = [name for name in parameter_order or [] if name in trained]
    if not order or len(values) != len(order):
        raise UserError(
            f"{key}: has {len(values)} entries for {len(groups)} parameter groups ({len(trained)} parameters); "
            "give one entry per group, or one for all"
        )
    by_name = dict(zip(order, values, strict=True))
    return [_common(key, group, by_name) for group in groups]


def _common(key: str, group: dict[str, Any], by_name: dict[str, Any]) -> Any:
    first_name, *other_names = group["param_names"]
    first = by_name[first_name]
    for name in other_names:
        if not _agree(first, by_name[name]):
            raise UserError(
                f"{key}: the entries of {first_name} and {name} differ, which share group {group['group_name']!r}; "
                "make them equal or set optimizer.merge_groups=false"
            )
    return first


def _agree(first: Any, second: Any) -> bool:
    if first is second or not (callable(first) and callable(second)):
        return bool(first is second or first == second)
    return all(first(step) == second(step) for step in SAMPLED_STEPS)
