"""Optimizer, scheduler and frozen parts of a run, which are built together and change together."""

from dataclasses import dataclass

import torch

from rfdetr_train.config import SwaConfig, TrainConfig
from rfdetr_train.engine.freezing import FrozenParts, NamedParameters, Unfreezer
from rfdetr_train.engine.run_length import RunLength
from rfdetr_train.loggers.console import print_table
from rfdetr_train.models.rfdetr import RFDETR
from rfdetr_train.optim.optimizers import build_optimizer, check_can_join, join
from rfdetr_train.optim.param_groups import annotate, group_table
from rfdetr_train.optim.schedulers import ManagedScheduler, build_scheduler
from rfdetr_train.optim.swa_scheduler import SwaScheduler

MOST_ROWS_SHOWN = 64


@dataclass
class Optimization:
    """What changes the weights."""

    optimizer: torch.optim.Optimizer
    scheduler: ManagedScheduler
    unfreezer: Unfreezer


def build_optimization(config: TrainConfig, model: RFDETR, length: RunLength, device: torch.device) -> Optimization:
    """Freeze what is to be frozen, group the rest, schedule the groups; `model` is on `device` already."""
    roles = model.parameter_roles()
    frozen = FrozenParts(model, roles, config.freeze)
    optimizer = build_optimizer(config.optimizer, annotate(model.named_parameters(), roles, config.optimizer), device)
    show_groups(optimizer)
    names = [name for name, _ in model.named_parameters()]
    scheduler = build_run_scheduler(config, optimizer, length, names)
    if frozen.any_joins_later:
        check_can_join(optimizer, scheduler)

    def join_parameters(named: NamedParameters) -> None:
        join(optimizer, scheduler, annotate(named, roles, config.optimizer), config.optimizer.merge_groups)

    return Optimization(optimizer, scheduler, Unfreezer(frozen, join_parameters))


def build_run_scheduler(
    config: TrainConfig, optimizer: torch.optim.Optimizer, length: RunLength, parameter_names: list[str]
) -> ManagedScheduler:
    """The run's warmup and schedule on `optimizer`, and SWA's rate behind them where `ema=swa`."""
    scheduler = build_scheduler(
        optimizer,
        config.scheduler,
        warmup_steps=length.warmup_steps(config.warmup),
        total_steps=length.total_steps,
        steps_per_epoch=length.steps_per_epoch,
        parameter_order=parameter_names,
    )
    return SwaScheduler(scheduler, config.ema) if isinstance(config.ema, SwaConfig) else scheduler


def show_groups(optimizer: torch.optim.Optimizer) -> None:
    """Print and log the table of parameter groups; of hundreds of single parameters only the first rows are shown."""
    rows = group_table(optimizer.param_groups)
    columns = ["group", "lr", "weight decay", "tensors", "parameters"]
    title = f"{len(rows)} parameter groups, {sum(row.tensors for row in rows)} tensors"
    if len(rows) > MOST_ROWS_SHOWN:
        title += f"; the first {MOST_ROWS_SHOWN}"
    print_table(title, columns, rows[:MOST_ROWS_SHOWN])
