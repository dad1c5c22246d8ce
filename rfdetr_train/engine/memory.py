"""The memory of a run: how much it takes, the largest batch that fits, and what is done when a step does not fit."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

# private, but torch's own and the only tool that also counts what a backward pass holds on a CPU
from torch.distributed._tools.mem_tracker import MemTracker

from rfdetr_train import distributed
from rfdetr_train.config import LBFGSConfig, TrainConfig
from rfdetr_train.criterion import Criterion
from rfdetr_train.data.canvas import Placement
from rfdetr_train.data.sample import Batch
from rfdetr_train.engine.precision import Precision
from rfdetr_train.errors import UserError

log = logging.getLogger(__name__)

GIB = 2**30
SHARE_OF_FREE_MEMORY = 0.8
ALLOCATOR_OVERHEAD = 1.35
"""Resident memory over the tensors' bytes; 1.30 was measured for nano on a CPU, in steps of 1 to 4 pictures."""
TARGETS_PER_PICTURE = 20
STATM = Path("/proc/self/statm")  # Linux: sizes of this process in pages, the second one resident

T = TypeVar("T")


def memory_gib(device: torch.device) -> float | None:
    """On CUDA the most that tensors have taken so far, on a CPU what this process holds; None where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    if device.type == "cpu" and STATM.is_file():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / GIB
    return None


class Pieces:
    """The micro-batches of a step, cut as small as memory asks for; their sizes stay what they once became."""

    def __init__(self, on_oom: str, device: torch.device) -> None:
        """`on_oom` as trainer.on_oom: error, or shrink."""
        self.on_oom = on_oom
        self.device = device
        self.of_each = 1

    def compute(self, window: Sequence[Batch], attempt: Callable[[list[Batch]], T], undo: Callable[[], None]) -> T:
        """What `attempt` makes of the pieces of `window`; `undo` is called before it is tried again with smaller ones.

        Raises: UserError where memory runs out and the pieces may not, or cannot, get smaller.
        """
        while True:
            try:
                return attempt([piece for batch in window for piece in batch.cut(self.of_each)])
            except torch.OutOfMemoryError as error:
                reason = str(error).partition("\n")[0]
            undo()  # here the tensors of the failed attempt are gone
            self._halve(window, reason)

    def _halve(self, window: Sequence[Batch], reason: str) -> None:
        """Not in one of several processes: the others are amid an exchange with it."""
        pictures = -(-max(len(batch.images) for batch in window) // self.of_each)
        height, width = window[0].images.shape[-2:]
        place = f"memory ran out in a step of {pictures} pictures of {height}x{width}"
        if self.on_oom == "error" or pictures == 1 or distributed.size() > 1:
            remedy = "trainer.on_oom=shrink, " if distributed.size() == 1 else ""
            remedy += "a lower trainer.batch_size with more trainer.accumulation_steps, or "
            raise UserError(f"{place}; use {remedy * (pictures > 1)}trainer.precision=bf16, or a smaller model or "
                            f"resolution ({reason})")  # fmt: skip
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.of_each *= 2
        log.warning("%s: from here on at most %d at once, and %d times the accumulation (trainer.on_oom=shrink)",
                    place, -(-pictures // 2), self.of_each)  # fmt: skip


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
    fixed = one - per_picture + _bytes_beyond_gradients(config, model)
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


def _bytes_beyond_gradients(config: TrainConfig, model: nn.Module) -> int:
    """Upper bound for what the optimizer and the average add to weights and gradients, before the two are built.

    What an optimizer that is built will keep says `checkpoint/saved_optimizer.py`.
    """
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    states = 2 * config.optimizer.history_size if isinstance(config.optimizer, LBFGSConfig) else 2
    transient, average = 1, int(config.ema.name != "none")
    return trained * (states + transient + average)
