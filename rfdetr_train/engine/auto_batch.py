"""`trainer.batch_size=auto`: the largest batch whose step fits into memory."""

import logging
import os

import torch
from torch import nn

# private, but torch's own and the only tool that also counts what a backward pass holds on a CPU
from torch.distributed._tools.mem_tracker import MemTracker

from rfdetr_train import distributed
from rfdetr_train.config import LBFGSConfig, TrainConfig
from rfdetr_train.criterion import Criterion
from rfdetr_train.data.canvas import Placement
from rfdetr_train.engine.precision import Precision
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

GIB = 2**30
SHARE_OF_FREE_MEMORY = 0.8
ALLOCATOR_OVERHEAD = 1.35
"""Resident memory over the tensors' bytes; 1.30 was measured for nano on a CPU, in steps of 1 to 4 pictures."""
TARGETS_PER_PICTURE = 20


def find_batch_size(
    config: TrainConfig, model: nn.Module, criterion: Criterion, precision: Precision, side_px: int, most: int
) -> int:
    """The largest batch, of at most `most` views `side_px` high, whose training step fits; at least 1, or `UserError`.

    The processes of a machine share what is free there.

    Counted: weights, gradients, optimizer state, its transient copies (as if one group held all parameters), the
    average, and the activations, whose growth with the batch two trial steps tell.
    """
    budget = memory_budget(config.trainer.memory_budget_gib, precision.device)
    budget = distributed.share_of_memory(budget, precision.device)
    picture = (config.model.input_channels, *Placement.of("stretch", config.model).view_px(side_px))
    one, two = (_peak_bytes(model, criterion, precision, picture, number) for number in (1, 2))
    per_picture = two - one
    fixed = one - per_picture + _optimizer_bytes(config, model)
    fits = int((budget / ALLOCATOR_OVERHEAD - fixed) // per_picture)
    log.info(
        "batch_size=auto: budget %.2f GiB, fixed %.2f GiB, %.3f GiB a picture (x %.2f for the allocator): %d fit",
        budget / GIB, fixed / GIB, per_picture / GIB, ALLOCATOR_OVERHEAD, fits,
    )  # fmt: skip
    if fits < 1:
        needed = (fixed + per_picture) * ALLOCATOR_OVERHEAD / GIB
        raise UserError(
            f"trainer.batch_size=auto: one picture needs {needed:.2f} GiB, the budget is {budget / GIB:.2f} GiB; "
            "choose a smaller model or resolution, or raise trainer.memory_budget_gib"
        )
    return min(fits, -(-most // distributed.size()))


def memory_budget(asked_gib: float | None, device: torch.device) -> int:
    """Bytes that may be filled: what was asked for, else a share of what is free on the device."""
    if asked_gib is not None:
        return int(asked_gib * GIB)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * SHARE_OF_FREE_MEMORY)
    if device.type == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * SHARE_OF_FREE_MEMORY)
    raise UserError(
        f"trainer.batch_size=auto: the free memory of {device} is not known; give trainer.memory_budget_gib"
    )


def _peak_bytes(
    model: nn.Module, criterion: Criterion, precision: Precision, picture: tuple[int, int, int], pictures: int
) -> int:
    """Most bytes that tensors hold at once in forward and backward of blank pictures; the model is left as it was."""
    device = precision.device
    images = torch.zeros(pictures, *picture, device=device)
    boxes_cxcywh = torch.full((TARGETS_PER_PICTURE, 4), 0.5, device=device)
    labels = torch.zeros(TARGETS_PER_PICTURE, dtype=torch.int64, device=device)
    targets = [{"boxes_cxcywh": boxes_cxcywh, "labels": labels}] * pictures
    model.train()
    statistics = [buffer.clone() for buffer in model.buffers()]  # a BatchNorm's take blank pictures in
    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        with precision.autocast():
            outputs = model(images)
        criterion(outputs, targets, 1.0)["loss"].backward()
    model.zero_grad(set_to_none=True)
    for buffer, before in zip(model.buffers(), statistics, strict=True):
        buffer.copy_(before)
    return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())


def _optimizer_bytes(config: TrainConfig, model: nn.Module) -> int:
    """Upper bound for what the optimizer and the average add to weights and gradients."""
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    states = 2 * config.optimizer.history_size if isinstance(config.optimizer, LBFGSConfig) else 2
    transient, average = 1, int(config.ema.name != "none")
    return trained * (states + transient + average)
