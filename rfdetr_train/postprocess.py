"""From the detector's outputs to detections in the pixels of the annotated pictures.

B batch, Q queries, C class logits.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rfdetr_train.boxes import at_least_float32, cxcywh_to_xyxy


@torch.no_grad()
def detections(
    outputs: Mapping[str, Tensor],
    sizes_px: Tensor,
    max_detections: int,
    num_labels: int | None = None,
    frames_px: Tensor | None = None,
) -> list[dict[str, Tensor]]:
    """The best (query, class) pairs of each image; a query may appear under several classes.

    Args:
        outputs: `logits` (B, Q, C) and `boxes_cxcywh` (B, Q, 4), fractions of the picture, of a model in evaluation.
        sizes_px: (B, 2), height and width of the pictures.
        max_detections: how many pairs to return; min(max_detections, Q C) are there.
        num_labels: consider the first `num_labels` classes only; None considers all C.
        frames_px: (B, 2), what the boxes are fractions of, in the pixels of sizes_px; None: the pictures themselves.

    Returns:
        Per image `scores` (n,) 0..1, falling, at ties the lower query and then the lower class first; `labels` (n,)
        int64; `boxes_xyxy` (n, 4) in pixels, inside the picture.
    """
    scores = at_least_float32(outputs["logits"][..., :num_labels]).sigmoid()
    num_classes = scores.shape[-1]
    best, pair = scores.flatten(1).sort(dim=1, descending=True, stable=True)
    best, pair = best[:, :max_detections], pair[:, :max_detections]
    boxes_xyxy = boxes_in_pixels(outputs["boxes_cxcywh"], sizes_px, frames_px)
    boxes_xyxy = boxes_xyxy.gather(1, (pair // num_classes).unsqueeze(-1).expand(-1, -1, 4))
    return [
        {"scores": image_scores, "labels": labels, "boxes_xyxy": boxes}
        for image_scores, labels, boxes in zip(best, pair % num_classes, boxes_xyxy, strict=True)
    ]


def boxes_in_pixels(boxes_cxcywh: Tensor, sizes_px: Tensor, frames_px: Tensor | None = None) -> Tensor:
    """(B, Q, 4) cxcywh as fractions -> (B, Q, 4) xyxy in pixels, clamped to the picture of (height, width)."""
    boxes_xyxy = cxcywh_to_xyxy(at_least_float32(boxes_cxcywh))
    limits, scales = (
        sides.flip(1).repeat(1, 2).to(boxes_xyxy)[:, None]  # width, height, width, height
        for sides in (sizes_px, sizes_px if frames_px is None else frames_px)
    )
    return torch.minimum((boxes_xyxy * scales).clamp(min=0.0), limits)
