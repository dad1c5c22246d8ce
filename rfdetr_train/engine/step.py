"""One optimizer step: forward and backward over the micro-batches of its accumulation window, clip, update.

A step whose loss or gradient norm is not finite changes nothing: weights, optimizer state and the statistics of
BatchNorms stay as they were, and in fp16 the loss scale is lowered.
"""

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rfdetr_train import distributed
from rfdetr_train.data.sample import Batch
from rfdetr_train.data.transforms import model_inputs
from rfdetr_train.engine.memory import Pieces
from rfdetr_train.engine.precision import Precision
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import RFDETR
from rfdetr_train.optim.hooks import StepNorms

log = logging.getLogger(__name__)


class _Skipped(Exception):
    """Leaves an optimizer's line search before it has changed anything."""


@dataclass
class StepResult:
    """What a step computed."""

    losses: dict[str, float]
    """`loss`, the weighted total, and the unweighted parts: `loss_class`, `loss_box`, `loss_giou` of the last decoder
    layer, the same with `_aux_0`, ... of the layers before it and with `_enc` of the two-stage selection."""
    grad_norm: float
    """Norm of all gradients before clipping."""
    num_images: int
    group_norms: dict[str, dict[str, float]] | None = None
    """`grad_norm` (after clipping) and `update_norm` by parameter group, where they were asked for."""
    pieces: int = 1
    """That each micro-batch was cut into, to fit into memory."""

    @property
    def skipped(self) -> bool:
        """The loss or the norm is not finite, so the step has changed nothing."""
        return not (math.isfinite(self.losses["loss"]) and math.isfinite(self.grad_norm))


def count_targets(window: Sequence[Batch]) -> int:
    """The objects on the pictures of a window, or of this process's share of it."""
    return sum(len(target["labels"]) for batch in window for target in batch.targets)


class TrainStep:
    """Calling it with a window of micro-batches changes the weights once.

    Of several processes each brings its share of every micro-batch, and what is computed is that of all shares.
    """

    def __init__(
        self,
        model: RFDETR,
        criterion: Callable[[dict, list[dict], float], dict[str, Tensor]],
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        clip_norm: float = 0.0,
        on_oom: str = "error",
    ) -> None:
        """`clip_norm` 0 does not clip; `on_oom` as trainer.on_oom."""
        self.model = model
        self.parameters_changed()
        self.criterion = criterion
        self.optimizer = optimizer
        self.precision = precision
        self.clip_norm = clip_norm
        self.pieces = Pieces(on_oom, precision.device)
        self.norms = StepNorms(optimizer)
        self._statistics = [b for m in model.modules() if isinstance(m, _BatchNorm) for b in m.buffers()]
        # L-BFGS and its kind evaluate the loss several times a step; the others take the gradients as they are
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        self.wants_closure = closure is not None and closure.default is inspect.Parameter.empty
        if self.wants_closure and precision.scaler.is_enabled():
            raise UserError(
                "trainer.precision=fp16: an optimizer that evaluates the loss itself cannot scale it; use bf16 or fp32"
            )
        if self.wants_closure and clip_norm > 0:
            log.info("gradients are not clipped (trainer.clip_norm=%g): the optimizer searches its own step", clip_norm)

    def parameters_changed(self) -> None:
        """To be called when parameters have been frozen or are no longer so."""
        self._network = distributed.parallel(self.model, self.model.all_used)

    def __call__(
        self, window: Sequence[Batch], num_targets: float | None = None, measure_groups: bool = False
    ) -> StepResult:
        """One step on the micro-batches of `window`; their loss is normalised over all of them together.

        `num_targets` are those of all processes' windows, by default counted now; `measure_groups` gives the norms of
        each parameter group.
        """
        if measure_groups:
            self.norms.arm()
        if num_targets is None:
            (num_targets,) = distributed.sums([count_targets(window)])
        num_boxes = float(max(1, num_targets * self.model.config.group_detr))
        result = (self._search if self.wants_closure else self._step)(window, num_boxes)
        result.group_norms = self.norms.read()
        return result

    def _step(self, window: Sequence[Batch], num_boxes: float) -> StepResult:
        result = self._gradients(window, num_boxes, self.clip_norm)
        if result.skipped:
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # or the scheduler would warn at step 1
        else:
            self.precision.scaler.step(self.optimizer)
        self.precision.scaler.update()
        return result

    def _search(self, window: Sequence[Batch], num_boxes: float) -> StepResult:
        """A step of an optimizer that evaluates the loss itself; a line search wants the slope unclipped."""
        results: list[StepResult] = []

        def closure() -> float:
            results.append(self._gradients(window, num_boxes, clip_norm=0.0))
            if results[0].skipped:  # later ones are trials, which a line search may reject
                raise _Skipped
            return results[-1].losses["loss"]

        with suppress(_Skipped):
            self.optimizer.step(closure)
        return results[0]  # the loss at the weights before the step, as for every other optimizer

    def _gradients(self, window: Sequence[Batch], num_boxes: float, clip_norm: float) -> StepResult:
        """Gradients of the whole window in `.grad`, clipped to `clip_norm` unless it is 0."""
        statistics = [buffer.clone() for buffer in self._statistics]

        def attempt(pieces: list[Batch]) -> StepResult:
            losses = self._forward_and_backward(pieces, num_boxes)
            return self._read(losses, self._clip(clip_norm), num_images=sum(len(piece.images) for piece in pieces))

        def restore() -> None:
            for buffer, before in zip(self._statistics, statistics, strict=True):
                buffer.copy_(before)

        def undo() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            restore()

        result = self.pieces.compute(window, attempt, undo)
        if result.skipped:
            restore()
        return result

    def _forward_and_backward(self, pieces: list[Batch], num_boxes: float) -> dict[str, Tensor]:
        """Add up the gradients of all pieces; their losses, summed."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for piece in pieces:
            with distributed.exchanging(self._network, now=piece is pieces[-1]):
                losses = self._piece(piece, num_boxes)
            for name, value in losses.items():
                sums[name] = sums[name] + value if name in sums else value
        return sums

    def _piece(self, batch: Batch, num_boxes: float) -> dict[str, Tensor]:
        counts = len(batch.images) > 0
        batch = (batch if counts else _blank(batch)).to(self.precision.device)
        with self.precision.autocast():
            outputs = self._network(*model_inputs(batch, self.model.config.input_channels))
        losses = self.criterion(outputs, batch.targets, num_boxes)
        # the exchange takes the mean of the processes' gradients, and what is wanted is their sum
        factor = distributed.size() if counts else 0
        loss = losses["loss"] if factor == 1 else losses["loss"] * factor
        self.precision.scaler.scale(loss).backward()
        return {name: value.detach() * counts for name, value in losses.items()}

    def _clip(self, clip_norm: float) -> Tensor:
        """The norm of all gradients before they are clipped."""
        self.precision.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return nn.utils.clip_grad_norm_(parameters, clip_norm if clip_norm > 0 else math.inf)

    def _read(self, sums: dict[str, Tensor], grad_norm: Tensor, num_images: int) -> StepResult:
        """One copy from the device for all numbers of the step; the gradients' norm is the same in all processes."""
        losses = torch.stack([value.float() for value in sums.values()])
        totals = distributed.add_up(torch.cat([losses, losses.new_tensor([num_images])]))
        *values, images, norm = torch.cat([totals, grad_norm.float().reshape(1)]).tolist()
        return StepResult(dict(zip(sums, values, strict=True)), norm, int(images), pieces=self.pieces.of_each)


def _blank(batch: Batch) -> Batch:
    """A black picture without objects, for a process without a share: in the exchange all must take part."""
    nothing = {"boxes_cxcywh": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    return Batch(batch.images.new_zeros(1, *batch.images.shape[1:]), [nothing])
