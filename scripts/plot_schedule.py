"""Draw the learning rates of a run: python scripts/plot_schedule.py scheduler=cosine warmup=linear trainer.epochs=10.

Takes the overrides of the training command, and before them --steps-per-epoch (100) and --output (schedule.png).
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import nn

from rfdetr_train.cli import compose_config
from rfdetr_train.config import TrainConfig
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate
from rfdetr_train.optim.schedulers import build_scheduler
from rfdetr_train.roles import ParameterRole

LEVEL_METRIC = 0.5
"""What every evaluation is taken to give: a schedule that waits for improvement sees none."""
PLACES = {
    "head and projector": ParameterRole("head", "weight"),
    "decoder": ParameterRole("decoder", "weight"),
    "encoder, final norm": ParameterRole("encoder", "norm", 0),
    "encoder, first block": ParameterRole("encoder", "weight", 13),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the learning rates of a run from the overrides of its command.")
    parser.add_argument("--steps-per-epoch", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("schedule.png"))
    arguments, overrides = parser.parse_known_args()
    config = compose_config("train", overrides)
    draw(config, arguments.steps_per_epoch, arguments.output)


def draw(config: TrainConfig, steps_per_epoch: int, output: Path) -> None:
    """Write the PNG: rates by step, the warmup enlarged beside it if there is one."""
    warmup_steps, total_steps = run_length(config, steps_per_epoch)
    rates = trace(config, warmup_steps, total_steps, steps_per_epoch)
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


def run_length(config: TrainConfig, steps_per_epoch: int) -> tuple[int, int]:
    """Warmup and total steps of the run."""
    total_steps = config.trainer.epochs * steps_per_epoch
    if config.trainer.max_steps is not None:
        total_steps = min(total_steps, config.trainer.max_steps)
    warmup = config.warmup
    return warmup.steps or round((warmup.epochs or 0.0) * steps_per_epoch), total_steps


def trace(config: TrainConfig, warmup_steps: int, total_steps: int, steps_per_epoch: int) -> dict[str, list[float]]:
    """The rate that each step of the run uses, by place; from the run's own optimizer and scheduler."""
    parameters = {place: nn.Parameter(torch.zeros(2, 2)) for place in PLACES}
    optimizer = build_optimizer(
        config.optimizer, annotate(parameters.items(), PLACES, config.optimizer), torch.device("cpu")
    )
    scheduler = build_scheduler(
        optimizer,
        config.scheduler,
        warmup_steps=warmup_steps,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        parameter_order=list(PLACES),
    )
    rates: dict[str, list[float]] = {place: [] for place in PLACES}
    for step in range(total_steps):
        for group in optimizer.param_groups:
            for place in group["param_names"]:
                rates[place].append(float(group["lr"]))
        optimizer.step(lambda: torch.zeros(()))
        scheduler.step()
        if (step + 1) % steps_per_epoch == 0:
            scheduler.epoch_end()
            scheduler.evaluated({getattr(config.scheduler, "monitor", "AP"): LEVEL_METRIC})
    return rates


def plot_lines(axes: Axes, rates: dict[str, list[float]], num_steps: int, marker: str | None = None) -> None:
    for place, values in rates.items():
        axes.plot(range(num_steps), values[:num_steps], label=place, marker=marker)
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    main()
