"""Averages of the weights: exponential with a ramped decay, or SWA."""

import logging
import math
from collections.abc import Callable, Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn, update_bn

from rfdetr_train.config import AveragingConfig, EmaConfig, SwaConfig

log = logging.getLogger(__name__)

Load = Callable[[nn.Module, dict[str, Tensor]], object]


def ema_decay(update: int, decay: float, tau: float) -> float:
    """Decay of the EMA's update number `update` (from 1): decay * (1 - exp(-update / tau)); tau = 0 has no ramp."""
    return decay * (1.0 - math.exp(-update / tau)) if tau > 0 else decay


def ema_update(decay: float, tau: float) -> Callable[[list[Tensor], list[Tensor], int], None]:
    """What `AveragedModel` does to all weights at once, given how often it has; at update 1 torch copies instead."""

    @torch.no_grad()
    def update(averages: list[Tensor], currents: list[Tensor], num_averaged: int) -> None:
        if not averages[0].is_floating_point():  # counters of a BatchNorm; torch calls once for each dtype
            torch._foreach_copy_(averages, currents)
            return
        torch._foreach_lerp_(averages, currents, 1.0 - ema_decay(num_averaged + 1, decay, tau))

    return update


def swa_update(averages: list[Tensor], currents: list[Tensor], num_averaged: Tensor | int) -> None:
    """`multi_avg_fn` for `AveragedModel`: torch's own, but for counters of a BatchNorm, which it cannot divide."""
    if not averages[0].is_floating_point():
        torch._foreach_copy_(averages, currents)
        return
    get_swa_multi_avg_fn()(averages, currents, num_averaged)


class NoAverage:
    """`ema=none`: the same calls, and nothing kept."""

    model: nn.Module | None = None

    def step_done(self) -> None:
        """After an optimizer step."""

    def epoch_done(self, epoch: int) -> None:
        """After an epoch."""

    def refresh_statistics(self, images: Iterable[Tensor]) -> None:
        """Before an evaluation; `images` are the training split's, (B, 3, R, R) normalised."""

    def state_dict(self) -> dict | None:
        """What a checkpoint keeps."""
        return None

    def load_state_dict(self, state: dict | None, load: Load) -> None:
        """The inverse of `state_dict`; `load(model, weights)` loads what fits."""


class Average(NoAverage):
    """An `AveragedModel` beside the raw model."""

    kind: ClassVar[str]
    """What a checkpoint calls it."""

    def __init__(self, raw: nn.Module, multi_avg_fn: Callable) -> None:
        self.raw = raw
        self.averaged = AveragedModel(raw, multi_avg_fn=multi_avg_fn, use_buffers=True)
        self.averaged.requires_grad_(False)

    @property
    def model(self) -> nn.Module | None:  # type: ignore[override]
        """The averaged model, or None while nothing has been averaged."""
        return self.averaged.module if self.num_updates else None

    @property
    def num_updates(self) -> int:
        """How many weights have entered."""
        return int(self.averaged.n_averaged)

    def state_dict(self) -> dict | None:
        return {"kind": self.kind, "model": self.averaged.module.state_dict(), "num_updates": self.num_updates}

    def load_state_dict(self, state: dict | None, load: Load) -> None:
        if state is None or state["kind"] != self.kind:
            before = "no average" if state is None else f"an average of kind {state['kind']}"
            log.warning("the run had %s: this one (%s) begins anew from the loaded weights", before, self.kind)
            state = {"model": self.raw.state_dict(), "num_updates": 0}
        load(self.averaged.module, state["model"])
        self.averaged.n_averaged.fill_(state["num_updates"])


class EmaAverage(Average):
    """Updated after every optimizer step."""

    kind = "ema"

    def __init__(self, raw: nn.Module, config: EmaConfig) -> None:
        update = ema_update(config.decay, config.tau)
        # torch hands its counter over on the device of the weights, and to read it there is to wait for that device
        super().__init__(raw, lambda averages, currents, _: update(averages, currents, self.num_updates))

    def step_done(self) -> None:
        self.averaged.update_parameters(self.raw)


class SwaAverage(Average):
    """Updated at the end of every epoch from `start_epoch` on."""

    kind = "swa"

    def __init__(self, raw: nn.Module, config: SwaConfig) -> None:
        super().__init__(raw, swa_update)
        self.start_epoch = config.start_epoch

    def epoch_done(self, epoch: int) -> None:
        if epoch >= self.start_epoch:
            self.averaged.update_parameters(self.raw)

    def refresh_statistics(self, images: Iterable[Tensor]) -> None:
        """A BatchNorm's running statistics belong to no average of weights: one pass over the images finds them."""
        pairs = zip(self.raw.modules(), self.averaged.module.modules(), strict=True)
        norms = [(raw, own) for raw, own in pairs if isinstance(own, _BatchNorm) and own.affine]
        if not norms or not self.num_updates:
            return
        for raw, own in norms:
            own.weight.requires_grad_(bool(raw.weight.requires_grad))  # by which a norm tells whether it is frozen

        def after_torchs_reset() -> Iterable[Tensor]:
            for raw, own in norms:
                if not raw.weight.requires_grad:
                    own.load_state_dict(raw.state_dict())
            yield from images

        update_bn(after_torchs_reset(), self.averaged.module)
        self.averaged.requires_grad_(False)


def build_average(config: AveragingConfig, raw: nn.Module) -> NoAverage:
    """The average that `ema=...` asks for."""
    if isinstance(config, EmaConfig):
        return EmaAverage(raw, config)
    if isinstance(config, SwaConfig):
        return SwaAverage(raw, config)
    return NoAverage()
