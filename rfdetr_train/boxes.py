"""Boxes as pure functions.

Formats: cxcywh is centre and size, xyxy is the upper left and the lower right corner, xywh is the upper left corner and
the size; x to the right, y down. The functions do not mind the unit, as long as all boxes of one call share it.
"""

import numpy as np
import torch
from torch import Tensor

SMALLEST_AREA = 1e-7  # denominators of IoU and GIoU never fall below it


def at_least_float32(values: Tensor) -> Tensor:
    """bf16 and fp16 become float32; float32 and float64 stay: boxes, costs and losses are never computed in less."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def cxcywh_to_xyxy(boxes_cxcywh: Tensor) -> Tensor:
    """(..., 4) cxcywh -> (..., 4) xyxy; a negative size counts as 0."""
    centre, size = boxes_cxcywh.split(2, dim=-1)
    half = 0.5 * size.clamp(min=0.0)
    return torch.cat((centre - half, centre + half), dim=-1)


def xywh_to_xyxy(boxes_xywh: np.ndarray) -> np.ndarray:
    """(n, 4) xywh, as files have them -> (n, 4) xyxy."""
    return np.concatenate([boxes_xywh[:, :2], boxes_xywh[:, :2] + boxes_xywh[:, 2:]], axis=1)


def xyxy_to_xywh(boxes_xyxy: np.ndarray) -> np.ndarray:
    """(n, 4) xyxy -> (n, 4) xywh."""
    return np.concatenate([boxes_xyxy[:, :2], boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]], axis=1)


def apply_deltas(deltas: Tensor, references_cxcywh: Tensor) -> Tensor:
    """Move and scale reference boxes: centre + delta_xy * size, size * exp(delta_wh); no sigmoid bounds the result.

    Args:
        deltas: (..., 4), any precision.
        references_cxcywh: (..., 4), float32 or more.

    Returns:
        (..., 4) cxcywh, float32 or more.
    """
    deltas = at_least_float32(deltas)
    reference_centre, reference_size = references_cxcywh.split(2, dim=-1)
    centre = deltas[..., :2] * reference_size + reference_centre
    size = deltas[..., 2:].exp() * reference_size
    return torch.cat((centre, size), dim=-1)


def box_area(boxes_xyxy: Tensor) -> Tensor:
    """(..., 4) xyxy -> (...)."""
    size = boxes_xyxy[..., 2:] - boxes_xyxy[..., :2]
    return size[..., 0] * size[..., 1]


def iou_and_giou(a_xyxy: Tensor, b_xyxy: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union, and its generalised form (arXiv 1902.09630), of boxes that broadcast with each other.

    Two sets of n boxes give n pairs; `a[:, None]` and `b[None]` give all pairs.

    Returns:
        IoU in 0..1 and GIoU in -1..1, both (...) without the last dimension.
    """
    overlap_upper_left = torch.maximum(a_xyxy[..., :2], b_xyxy[..., :2])
    overlap_lower_right = torch.minimum(a_xyxy[..., 2:], b_xyxy[..., 2:])
    overlap = (overlap_lower_right - overlap_upper_left).clamp(min=0.0).prod(dim=-1)
    union = box_area(a_xyxy) + box_area(b_xyxy) - overlap
    iou = overlap / union.clamp(min=SMALLEST_AREA)

    hull_upper_left = torch.minimum(a_xyxy[..., :2], b_xyxy[..., :2])
    hull_lower_right = torch.maximum(a_xyxy[..., 2:], b_xyxy[..., 2:])
    hull = (hull_lower_right - hull_upper_left).clamp(min=0.0).prod(dim=-1)
    return iou, iou - (hull - union) / hull.clamp(min=SMALLEST_AREA)
