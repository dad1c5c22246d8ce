"""Draw the learning rates of a run: python scripts/plot_schedule.py scheduler=cosine warmup=linear trainer.epochs=10.

Takes the overrides of the training command, and before them --steps-per-epoch (100) and --output (schedule.png).
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import nn

from rfdetr_train.cli import compose_config
from rfdetr_train.config import TrainConfig
from rfdetr_train.engine.course import RunLength
from rfdetr_train.engine.optimization import build_run_scheduler
from rfdetr_train.models.rfdetr import build_model
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.optim.schedulers import ManagedScheduler
from rfdetr_train.roles import ParameterRole

LEVEL_METRIC = 0.5
"""What every evaluation is taken to give: a schedule that waits for improvement sees none."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the learning rates of a run from the overrides of its command.")
    parser.add_argument("--steps-per-epoch", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("schedule.png"))
    arguments, overrides = parser.parse_known_args()
    config = compose_config("train", overrides)
    draw(config, arguments.steps_per_epoch, arguments.output)


def draw(config: TrainConfig, steps_per_epoch: int, output: Path) -> None:
    """Write the PNG: rates by step, the warmup enlarged beside it if there is one."""
    length = RunLength(steps_per_epoch, config.trainer.epochs, config.trainer.max_steps)
    warmup_steps, total_steps = length.warmup_steps(config.warmup), length.total_steps
    rates = trace(config, length)
    figure, axes = plt.subplots(1, 2 if warmup_steps else 1, figsize=(12 if warmup_steps else 8, 4.5), squeeze=False)
    plot_lines(axes[0, 0], rates, total_steps)
    axes[0, 0].set_title(f"{config.scheduler.name}, {warmup_steps} warmup steps of {total_steps}")
    axes[0, 0].legend()
    if warmup_steps:
        plot_lines(axes[0, 1], rates, min(2 * warmup_steps, total_steps), marker="." if warmup_steps <= 40 else None)
        axes[0, 1].axvline(warmup_steps - 1, color="grey", linestyle=":")
        axes[0, 1].set_title("the beginning; dotted: the first step at the full rate")
    figure.tight_layout()
    figure.savefig(output, dpi=110)
    plt.close(figure)


def trace(config: TrainConfig, length: RunLength) -> dict[str, list[float]]:
    """The rate that each step of the run uses, by place."""
    with torch.device("meta"):  # names and roles only
        roles = build_model(config.model, num_classes=1).parameter_roles()
    places = places_of(roles)
    scheduler = scheduler_of(config, length, roles, places)
    rates: dict[str, list[float]] = {place: [] for place in places.values()}
    for step in range(1, length.total_steps + 1):
        for group in scheduler.optimizer.param_groups:
            for name in group["param_names"]:
                rates[places[name]].append(float(group["lr"]))
        scheduler.optimizer.step(lambda: 0.0)
        scheduler.step()
        epoch, position = divmod(step, length.steps_per_epoch)
        if position == 0:
            scheduler.epoch_end()
        if step == length.total_steps or (position == 0 and epoch % config.evaluation.every_epochs == 0):
            scheduler.evaluated({getattr(config.scheduler, "monitor", "AP"): LEVEL_METRIC})
    return rates


def places_of(roles: dict[str, ParameterRole]) -> dict[str, str]:
    """A parameter for each line of the picture: its name, and what the line is called."""
    weights = {name: role for name, role in roles.items() if role.kind == "weight"}
    heads, decoder, encoder = (
        [name for name, role in weights.items() if role.part == part] for part in ("head", "decoder", "encoder")
    )
    final_norm = next(name for name, role in roles.items() if role.part == "encoder" and role.layers_above == 0)
    return {
        heads[0]: "head and projector",
        decoder[0]: "decoder",
        final_norm: "encoder, final norm",
        max(encoder, key=lambda name: roles[name].layers_above): "encoder, first block",
    }


def scheduler_of(
    config: TrainConfig, length: RunLength, roles: dict[str, ParameterRole], names: Iterable[str]
) -> ManagedScheduler:
    """The run's own scheduler and, in it, its optimizer, over small parameters of these names."""
    parameters = [(name, nn.Parameter(torch.zeros(2, 2))) for name in names]
    optimizer = build_optimizer(config.optimizer, annotate(parameters, roles, config.optimizer), "cpu")
    return build_run_scheduler(config, optimizer, length, list(roles))


def plot_lines(axes: Axes, rates: dict[str, list[float]], num_steps: int, marker: str | None = None) -> None:
    for place, values in rates.items():
        axes.plot(range(num_steps), values[:num_steps], label=place, marker=marker)
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    main()
