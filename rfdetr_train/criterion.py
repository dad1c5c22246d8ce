"""The training loss: IoU-aware classification (RF-DETR, arXiv 2511.09554; LW-DETR, 2406.03459), L1 and GIoU of boxes.

B batch, N = G Q queries in G groups, C class logits, P matched pairs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rfdetr_train.boxes import at_least_float32, cxcywh_to_xyxy, iou_and_giou

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

    def __init__(self, num_queries: int, match: Match, weights: LossWeights | None = None) -> None:
        """Prepare.

        Args:
            num_queries: Q, from which the number of groups of an output follows.
            match: `rfdetr_train.matcher.match`, or another way to assign targets to queries.
            weights: of the losses in the total.
        """
        self.num_queries = num_queries
        self.match = match
        self.weights = weights or LossWeights()

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
            the ending `_aux_0`, `_aux_1`, ... and `_enc`, none of them weighted.
        """
        parts = _outputs_by_ending(outputs)
        num_groups = outputs["logits"].shape[1] // self.num_queries
        matched = self.match(list(parts.values()), targets, num_groups)
        labels = torch.cat([target["labels"] for target in targets])
        truth_cxcywh = torch.cat([target["boxes_cxcywh"] for target in targets])
        losses: dict[str, Tensor] = {}
        total = outputs["logits"].new_zeros((), dtype=torch.float32)
        for (ending, output), pairs in zip(parts.items(), matched, strict=True):
            label, box, giou = (loss / num_boxes for loss in output_losses(output, labels, truth_cxcywh, pairs))
            losses |= {f"loss_class{ending}": label, f"loss_box{ending}": box, f"loss_giou{ending}": giou}
            total = total + self.weights.label * label + self.weights.box * box + self.weights.giou * giou
        return {"loss": total, **losses}


def _outputs_by_ending(outputs: Mapping[str, Any]) -> dict[str, Mapping[str, Tensor]]:
    """The last layer under "", then the layers before it, then the two-stage selection."""
    aux = {f"_aux_{index}": output for index, output in enumerate(outputs.get("aux", []))}
    return {"": outputs, **aux, "_enc": outputs["enc"]}


def output_losses(
    output: Mapping[str, Tensor], labels: Tensor, truth_cxcywh: Tensor, pairs: Pairs
) -> tuple[Tensor, Tensor, Tensor]:
    """Class, L1 and GIoU loss of one output, summed over its pairs.

    Args:
        output: `logits` (B, N, C), `boxes_cxcywh` (B, N, 4).
        labels: classes of the targets of all images, laid one after the other.
        truth_cxcywh: their boxes, (targets, 4).
        pairs: the matched pairs of this output.
    """
    image, query, target = pairs
    truth = at_least_float32(truth_cxcywh[target])
    boxes = at_least_float32(output["boxes_cxcywh"][image, query])
    iou, giou = iou_and_giou(cxcywh_to_xyxy(boxes), cxcywh_to_xyxy(truth))
    matched = (image, query, labels[target])
    return iou_aware_class_loss(output["logits"], matched, iou), (boxes - truth).abs().sum(), (1 - giou).sum()


def iou_aware_class_loss(logits: Tensor, matched: tuple[Tensor, Tensor, Tensor], iou: Tensor) -> Tensor:
    """Binary cross-entropy whose target, for a matched query's class, is how good the query already is.

    Args:
        logits: (B, N, C).
        matched: (P,) each: image, query and class of the pairs.
        iou: (P,) overlap of query and target, 0..1.

    Returns:
        The sum over all queries and classes.
    """
    logits = at_least_float32(logits)
    probability = logits.sigmoid()
    quality = (probability[matched] ** IOU_ALPHA * iou ** (1 - IOU_ALPHA)).clamp(min=LEAST_QUALITY).detach()
    positive = torch.zeros_like(logits).index_put(matched, quality)
    # Only the quality is a constant: the weight of a negative pushes its own probability down as well.
    negative = (probability**2).index_put(matched, 1 - quality)
    return (negative * logits - functional.logsigmoid(logits) * (positive + negative)).sum()
