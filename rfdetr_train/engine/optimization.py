"""A network made ready to train, with optimizer, scheduler and frozen parts, which change together."""

import logging
from dataclasses import dataclass

import torch

from rfdetr_train.config import OptimizerConfig, SwaConfig, TrainConfig, TrainerConfig
from rfdetr_train.engine.course import RunLength
from rfdetr_train.engine.freezing import FrozenParts
from rfdetr_train.engine.precision import require_compiler
from rfdetr_train.loggers.console import print_table
from rfdetr_train.models.rfdetr import RFDETR
from rfdetr_train.optim.optimizers import build_optimizer, check_can_join, join
from rfdetr_train.optim.param_groups import annotate, group_table
from rfdetr_train.optim.schedulers import ManagedScheduler, build_scheduler
from rfdetr_train.optim.swa_scheduler import SwaScheduler
from rfdetr_train.roles import ParameterRole

log = logging.getLogger(__name__)

MOST_ROWS_SHOWN = 64


@dataclass
class Optimization:
    """What changes the weights."""

    optimizer: torch.optim.Optimizer
    scheduler: ManagedScheduler
    frozen: FrozenParts
    config: OptimizerConfig
    roles: dict[str, ParameterRole]

    def enter_epoch(self, epoch: int) -> bool:
        """Let the parts train whose epoch has come, and say whether there are any; asking again does nothing."""
        thawed = self.frozen.thaw(epoch)
        for part, named in thawed.items():
            annotated = annotate(named, self.roles, self.config)
            join(self.optimizer, self.scheduler, annotated, self.config.merge_groups)
            log.info("epoch %d: the %s trains from now on (%d tensors)", epoch, part, len(named))
        return bool(thawed)


def prepare_to_train(model: RFDETR, config: TrainerConfig, device: torch.device) -> RFDETR:
    """The one place where a network is made ready to train: moved to its device, told how to compute there."""
    if config.checkpointing:
        model.recompute_activations()
    if config.compile:
        require_compiler()
        model.compile_blocks()
    return model.to(device)


def build_optimization(config: TrainConfig, model: RFDETR, length: RunLength, device: torch.device) -> Optimization:
    """Freeze what is to be frozen, group the rest, schedule the groups; `model` is on `device` already."""
    frozen, optimizer = freeze_and_group(config, model, device)
    show_groups(optimizer)
    names = [name for name, _ in model.named_parameters()]
    scheduler = build_run_scheduler(config, optimizer, length, names)
    if frozen.any_joins_later:
        check_can_join(optimizer, scheduler)
    return Optimization(optimizer, scheduler, frozen, config.optimizer, model.parameter_roles())


def freeze_and_group(
    config: TrainConfig, model: RFDETR, device: torch.device
) -> tuple[FrozenParts, torch.optim.Optimizer]:
    """Freeze parts of `model` and give the optimizer of the others, in its groups."""
    roles = model.parameter_roles()
    frozen = FrozenParts(model, roles, config.freeze)
    annotated = annotate(model.named_parameters(), roles, config.optimizer)
    return frozen, build_optimizer(config.optimizer, annotated, device)


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
