"""Optimizer, scheduler and frozen parts of a run, which are built together and change together."""

import logging
from dataclasses import dataclass

import torch
from torch import nn

from rfdetr_train.config import SwaConfig, TrainConfig, WarmupConfig
from rfdetr_train.engine.freezing import Freezer
from rfdetr_train.loggers.tables import print_table
from rfdetr_train.models.rfdetr import RFDETR
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate, group_table
from rfdetr_train.optim.schedulers import ManagedScheduler, build_scheduler
from rfdetr_train.optim.swa_scheduler import SwaScheduler
from rfdetr_train.optim.unfreeze import check_can_join, join

log = logging.getLogger(__name__)

MOST_ROWS_SHOWN = 64


@dataclass(frozen=True)
class RunLength:
    """How long a run is, in steps."""

    steps_per_epoch: int
    total_steps: int

    @classmethod
    def of(cls, steps_per_epoch: int, epochs: int, max_steps: int | None) -> "RunLength":
        """`max_steps` ends a run, and its schedule, that `epochs` would make longer."""
        total = steps_per_epoch * epochs
        return cls(steps_per_epoch, total if max_steps is None else min(total, max_steps))

    def warmup_steps(self, config: WarmupConfig) -> int:
        """The warmup in steps; its epochs become steps here and nowhere else."""
        if config.epochs is not None:
            return round(config.epochs * self.steps_per_epoch)
        return config.steps or 0


@dataclass
class Optimization:
    """What changes the weights."""

    optimizer: torch.optim.Optimizer
    scheduler: ManagedScheduler
    freezer: Freezer


def build_optimization(config: TrainConfig, model: RFDETR, length: RunLength, device: torch.device) -> Optimization:
    """Freeze what is to be frozen, group the rest, schedule the groups; `model` is on `device` already."""
    roles = model.parameter_roles()
    freezer = Freezer(model, roles, config.freeze)
    optimizer = build_optimizer(config.optimizer, annotate(model.named_parameters(), roles, config.optimizer), device)
    show_groups(optimizer)
    scheduler = build_scheduler(
        optimizer,
        config.scheduler,
        warmup_steps=length.warmup_steps(config.warmup),
        total_steps=length.total_steps,
        steps_per_epoch=length.steps_per_epoch,
        parameter_order=[name for name, _ in model.named_parameters()],
    )
    if isinstance(config.ema, SwaConfig):
        scheduler = SwaScheduler(scheduler, config.ema)

    def join_parameters(named: list[tuple[str, nn.Parameter]]) -> None:
        join(optimizer, scheduler, annotate(named, roles, config.optimizer), config.optimizer.merge_groups)

    if freezer.has_parts_to_join:
        check_can_join(optimizer, scheduler)
    freezer.join = join_parameters
    return Optimization(optimizer, scheduler, freezer)


def show_groups(optimizer: torch.optim.Optimizer) -> None:
    """Print and log the table of parameter groups; of hundreds of single parameters only the first rows are shown."""
    rows = group_table(optimizer.param_groups)
    columns = ["group", "lr", "weight decay", "tensors", "parameters"]
    title = f"{len(rows)} parameter groups, {sum(row.tensors for row in rows)} tensors"
    if len(rows) > MOST_ROWS_SHOWN:
        title += f"; the first {MOST_ROWS_SHOWN}"
    print_table(title, columns, rows[:MOST_ROWS_SHOWN])
