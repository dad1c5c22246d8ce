"""Bipartite matching of queries and targets (DETR, arXiv 2005.12872), per image, per group of queries, per output.

O outputs (last layer, earlier layers, two-stage), B batch, N = G Q queries in G groups, M largest number of targets of
an image, P matched pairs of an output.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from rfdetr_train.boxes import at_least_float32, cxcywh_to_xyxy, iou_and_giou

FOCAL_ALPHA = 0.25
MOST_COSTS = 2**25  # computed at once: 128 MiB a tensor, of which a handful live at a time
LARGE_COST = 1e8  # stands for a cost that is not finite; float32 keeps it apart from all others


class CostWeights(NamedTuple):
    """Factors of the three parts of the cost."""

    label: float = 2.0
    box: float = 5.0
    giou: float = 2.0


class Matching(NamedTuple):
    """The matched pairs of one output, (P,) int64 each: image after image, group after group, queries rising."""

    image: Tensor
    """0..B-1."""
    query: Tensor
    """0..N-1."""
    target: Tensor
    """Position among the targets of all images, laid one after the other."""


@torch.no_grad()
def match(
    outputs: Sequence[Mapping[str, Tensor]],
    targets: Sequence[Mapping[str, Tensor]],
    num_groups: int,
    weights: CostWeights | None = None,
) -> list[Matching]:
    """Assign targets to queries at the least total cost.

    Args:
        outputs: `logits` (B, N, C) and `boxes_cxcywh` (B, N, 4) each.
        targets: `labels` (n,) and `boxes_cxcywh` (n, 4) of each image, as fractions of the picture like the outputs.
        num_groups: G; every group is matched with all targets, on its own.

    Returns:
        A matching per output, on the outputs' device.
    """
    device = outputs[0]["logits"].device
    num_targets = [len(target["labels"]) for target in targets]
    parts = _by_queries(outputs, max(num_targets))  # one, unless the pictures are crowded: then one copy to the host
    costs = np.concatenate([pairwise_costs(p, targets, weights or CostWeights()).cpu().numpy() for p in parts], axis=2)
    pairs = torch.from_numpy(np.stack([_assign_images(cost, num_targets, num_groups) for cost in costs])).to(device)
    return [Matching(*output) for output in pairs]


def _by_queries(outputs: Sequence[Mapping[str, Tensor]], most_targets: int) -> list[list[dict[str, Tensor]]]:
    """The outputs in slices of queries that have at most MOST_COSTS costs each."""
    batch, queries = outputs[0]["logits"].shape[:2]
    size = max(1, MOST_COSTS // max(1, len(outputs) * batch * most_targets))
    return [
        [{key: output[key][:, start : start + size] for key in ("logits", "boxes_cxcywh")} for output in outputs]
        for start in range(0, queries, size)
    ]


def pairwise_costs(
    outputs: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]], weights: CostWeights
) -> Tensor:
    """The cost of every query with every target of its image, all finite: (O, B, N, M), padded behind the targets."""
    labels = pad_sequence([target["labels"] for target in targets], batch_first=True)
    truth = at_least_float32(pad_sequence([target["boxes_cxcywh"] for target in targets], batch_first=True))
    boxes = torch.stack([at_least_float32(output["boxes_cxcywh"]) for output in outputs])

    label_cost = torch.stack([_label_cost(output["logits"], labels) for output in outputs])
    box_cost = torch.cdist(boxes, truth.expand(len(outputs), -1, -1, -1).to(boxes.dtype), p=1)
    corners, true_corners = cxcywh_to_xyxy(boxes), cxcywh_to_xyxy(truth)
    giou = iou_and_giou(corners[:, :, :, None], true_corners[None, :, None])[1]

    cost = weights.label * label_cost + weights.box * box_cost - weights.giou * giou
    return torch.where(cost.isfinite(), cost, LARGE_COST)


def _label_cost(logits: Tensor, labels: Tensor) -> Tensor:
    """Focal cost (arXiv 1708.02002) of the target's class, less what its absence would cost: (B, N, M)."""
    chosen = labels[:, None].expand(-1, logits.shape[1], -1)
    logit = at_least_float32(logits.gather(2, chosen))
    probability = logit.sigmoid()
    present = FOCAL_ALPHA * (1 - probability) ** 2 * -functional.logsigmoid(logit)
    absent = (1 - FOCAL_ALPHA) * probability**2 * -functional.logsigmoid(-logit)
    return present - absent


def _assign_images(costs: np.ndarray, num_targets: Sequence[int], num_groups: int) -> np.ndarray:
    """Costs (B, N, M) -> pairs (3, P): image, query, target."""
    pairs = []
    first_target = 0
    for image, (cost, count) in enumerate(zip(costs, num_targets, strict=True)):
        group_size = len(cost) // num_groups
        for start in range(0, len(cost), group_size):
            queries, matched = linear_sum_assignment(cost[start : start + group_size, :count])
            pairs.append(np.stack((np.full_like(queries, image), queries + start, matched + first_target)))
        first_target += count
    return np.concatenate(pairs, axis=1)
