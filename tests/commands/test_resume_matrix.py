"""Every optimizer and schedule, in fp32 and bf16, from an epoch's middle and end: a resume differs by nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from comparison import equal_to_the_bit, rows_without_speed, states

from rfdetr_train.schema import OPTIMIZERS, SCHEDULERS

NEEDS = {
    "optimizer=custom": ["optimizer._target_=torch.optim.Rprop"],
    "scheduler=step": ["scheduler.drop_epochs=[1]"],
    "scheduler=torch": ["scheduler._target_=torch.optim.lr_scheduler.StepLR", "+scheduler.args.step_size=2"],
}
CHOICES = [f"optimizer={name}" for name in OPTIMIZERS] + [f"scheduler={name}" for name in SCHEDULERS]
MORE = [
    ["scheduler=torch", "scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau",
     "scheduler.interval=evaluation"],
    ["scheduler=torch", "scheduler._target_=torch.optim.lr_scheduler.ExponentialLR", "+scheduler.args.gamma=0.5",
     "scheduler.interval=epoch"],
    ["optimizer.merge_groups=false", "ema=none"],
    ["trainer.accumulation_steps=2", "trainer.batch_size=2", "augmentation=reference"],
    ["augmentation=composites", "augmentation.off_last_epochs=1",
     "augmentation.extra=[{_target_: torchvision.transforms.v2.GaussianBlur, kernel_size: 3}]"],
]  # fmt: skip
COMBINATIONS = [[choice, *NEEDS.get(choice, [])] for choice in CHOICES] + MORE


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("choice", COMBINATIONS, ids=" ".join)
def test_a_resume_differs_by_nothing(run: Callable[..., Path], choice: list[str], precision: str) -> None:
    """Six steps in two epochs, three an epoch; saved after step 2 (mid-epoch) and step 3 (epoch's end)."""
    schedule = [] if any(c.startswith("scheduler=") for c in choice) else ["scheduler=cosine"]
    options = [*schedule, "warmup=linear", "warmup.steps=2", f"trainer.precision={precision}", "logger.plots=false",
               "checkpoint.every_steps=1", "checkpoint.keep=10", *choice]  # fmt: skip
    whole = run("whole", *options)
    losses = [row["loss"] for row in rows_without_speed(whole) if row["split"] == "train"]
    assert len(set(losses)) == 6  # it trains
    for step in (2, 3):
        resumed = run(f"from-{step}", *options, f"resume={whole / f'checkpoints/step-{step:06d}.pt'}")
        assert equal_to_the_bit(states(whole / "checkpoints/last.pt"), states(resumed / "checkpoints/last.pt"))
        assert rows_without_speed(whole) == rows_without_speed(resumed)
