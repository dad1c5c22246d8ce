"""The training loss: IoU-aware classification (RF-DETR, arXiv 2511.09554; LW-DETR, 2406.03459), L1 and GIoU of boxes.

B batch, N = G Q queries in G groups, C class logits, P matched pairs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rfdetr_train.boxes import at_least_float32, cxcywh_to_xyxy, iou_and_giou
from rfdetr_train.errors import UserError, did_you_mean

IOU_ALPHA = 0.25  # the quality of a matched query is probability^alpha * IoU^(1 - alpha)
LEAST_QUALITY = 0.01

Pairs = tuple[Tensor, Tensor, Tensor]
"""Image, query and target of each matched pair, (P,) int64 each; targets counted over all images."""
Match = Callable[[Sequence[Mapping[str, Tensor]], Sequence[Mapping[str, Tensor]], int], Sequence[Pairs]]
"""Outputs, targets per image, number of groups -> pairs of each output; see `rfdetr_train/matcher.py`."""


class LossWeights(NamedTuple):
    """Factors of the three parts in the total, the same for every output."""

    label: float = 1.0
    box: float = 5.0
    giou: float = 2.0


class Criterion:
    """Matches every output with the targets on its own and adds up the losses."""

    def __init__(
        self,
        num_queries: int,
        match: Match,
        weights: LossWeights | None = None,
        class_weights: Tensor | None = None,
    ) -> None:
        """Prepare.

        Args:
            num_queries: Q, from which the number of groups of an output follows.
            match: `rfdetr_train.matcher.match`, or another way to assign targets to queries.
            weights: of the losses in the total.
            class_weights: by label, as `iou_aware_class_loss` takes them.
        """
        self.num_queries = num_queries
        self.match = match
        self.weights = weights or LossWeights()
        self.class_weights = class_weights

    def __call__(
        self, outputs: Mapping[str, Any], targets: Sequence[Mapping[str, Tensor]], num_boxes: float
    ) -> dict[str, Tensor]:
        """Compute all losses in float32 or more.

        Args:
            outputs: what the model returns.
            targets: per image `labels` (n,) int64 and `boxes_cxcywh` (n, 4), fractions of the picture.
            num_boxes: what sums over pairs are divided by: max(1, targets of the whole optimizer step x G).

        Returns:
            `loss`, the weighted total; `loss_class`, `loss_box` and `loss_giou` of the last layer, and the same with
            the ending `_aux_0`, `_aux_1`, ... and `_enc`, none of them times its factor in the total.
        """
        parts = _outputs_by_ending(outputs)
        num_groups = outputs["logits"].shape[1] // self.num_queries
        matched = self.match(list(parts.values()), targets, num_groups)
        labels = torch.cat([target["labels"] for target in targets])
        truth_cxcywh = torch.cat([target["boxes_cxcywh"] for target in targets])
        losses: dict[str, Tensor] = {}
        total = outputs["logits"].new_zeros((), dtype=torch.float32)
        for (ending, output), pairs in zip(parts.items(), matched, strict=True):
            sums = output_losses(output, labels, truth_cxcywh, pairs, self.class_weights)
            label, box, giou = (loss / num_boxes for loss in sums)
            losses |= {f"loss_class{ending}": label, f"loss_box{ending}": box, f"loss_giou{ending}": giou}
            total = total + self.weights.label * label + self.weights.box * box + self.weights.giou * giou
        return {"loss": total, **losses}


def _outputs_by_ending(outputs: Mapping[str, Any]) -> dict[str, Mapping[str, Tensor]]:
    """The last layer under "", then the layers before it, then the two-stage selection."""
    aux = {f"_aux_{index}": output for index, output in enumerate(outputs.get("aux", []))}
    return {"": outputs, **aux, "_enc": outputs["enc"]}


def output_losses(
    output: Mapping[str, Tensor],
    labels: Tensor,
    truth_cxcywh: Tensor,
    pairs: Pairs,
    class_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Class, L1 and GIoU loss of one output, summed over its pairs.

    Args:
        output: `logits` (B, N, C), `boxes_cxcywh` (B, N, 4).
        labels: classes of the targets of all images, laid one after the other.
        truth_cxcywh: their boxes, (targets, 4).
        pairs: the matched pairs of this output.
        class_weights: as of `iou_aware_class_loss`.
    """
    image, query, target = pairs
    truth = at_least_float32(truth_cxcywh[target])
    boxes = at_least_float32(output["boxes_cxcywh"][image, query])
    iou, giou = iou_and_giou(cxcywh_to_xyxy(boxes), cxcywh_to_xyxy(truth))
    matched = (image, query, labels[target])
    class_loss = iou_aware_class_loss(output["logits"], matched, iou, class_weights)
    return class_loss, (boxes - truth).abs().sum(), (1 - giou).sum()


def iou_aware_class_loss(
    logits: Tensor, matched: tuple[Tensor, Tensor, Tensor], iou: Tensor, class_weights: Tensor | None = None
) -> Tensor:
    """Binary cross-entropy whose target, for a matched query's class, is how good the query already is.

    With p = sigmoid(logit) and t the quality, a matched (query, class) costs -w_c (t log p + (1 - t) log(1 - p)) and
    every other one -p^2 log(1 - p), which no weight changes: with w_c > 1 a missed object of class c costs more than a
    false one.

    Args:
        logits: (B, N, C).
        matched: (P,) each: image, query and class of the pairs.
        iou: (P,) overlap of query and target, 0..1.
        class_weights: w_c by class, as many as there are classes with targets; None: all 1.

    Returns:
        The sum over all queries and classes.
    """
    logits = at_least_float32(logits)
    negatives = _NegativeLosses.apply(logits)
    chosen = logits[matched]
    quality = (chosen.sigmoid() ** IOU_ALPHA * iou ** (1 - IOU_ALPHA)).clamp(min=LEAST_QUALITY).detach()
    positives = functional.binary_cross_entropy_with_logits(chosen, quality, reduction="none")
    if class_weights is not None:
        positives = positives * class_weights.to(positives)[matched[2]]
    return negatives.index_put_(matched, positives).sum()


class _NegativeLosses(torch.autograd.Function):
    """-p^2 log(1 - p) with p = sigmoid(x), elementwise; its slope p^2 (p - 2 (1 - p) log(1 - p)) is all that it keeps.

    The probability that weights a negative is no constant: it is pushed down as well.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        probability, log_absent = logits.sigmoid(), functional.logsigmoid(-logits)
        squared = probability**2
        ctx.save_for_backward(squared * (probability - 2 * (1 - probability) * log_absent))
        return -squared * log_absent

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return gradient * slope


def find_class_weights(
    asked: Mapping[str, float] | str | None, names: Sequence[str], num_boxes: Sequence[int]
) -> Tensor | None:
    """The class weights that `loss.class_weights` means, (classes,) by label; None: all 1.

    Args:
        asked: weights by class name, 1 for classes not named; or auto: n^-1/2 for a class of n boxes, scaled so that
            the mean over all boxes is 1, and 1 for a class without boxes.
        names: of the classes, by label.
        num_boxes: of each class in the train split.

    Raises:
        UserError: no class has the name.
    """
    if asked is None:
        return None
    if isinstance(asked, Mapping):
        for name in asked:
            if str(name) not in names:
                hint = did_you_mean(str(name), names) or f"the classes are {', '.join(names)}"
                raise UserError(f"loss.class_weights: no class is called {name}; {hint}")
        by_name = {str(name): weight for name, weight in asked.items()}
        return torch.tensor([by_name.get(name, 1.0) for name in names], dtype=torch.float64)
    counts = torch.tensor(num_boxes, dtype=torch.float64)
    return torch.where(counts > 0, counts.clamp(min=1.0) ** -0.5 * counts.sum() / counts.sqrt().sum(), 1.0)
