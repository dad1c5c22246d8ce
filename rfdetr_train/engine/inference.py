"""From pictures to what a detector finds in them: in a batch, and in large pictures by overlapping tiles."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.ops import batched_nms

from rfdetr_train.config import ModelConfig
from rfdetr_train.data.sample import Batch
from rfdetr_train.data.transforms import model_inputs
from rfdetr_train.engine.precision import Precision
from rfdetr_train.postprocess import detections

NMS_IOU = 0.5  # of boxes from different tiles that are one object


@torch.no_grad()  # in inference mode autocast would not keep its copies of the weights, see `Precision.kept_casts`
def detect(
    model: nn.Module, config: ModelConfig, batch: Batch, precision: Precision, num_labels: int
) -> list[dict[str, Tensor]]:
    """What a model of these sizes, in evaluation mode, finds in each picture: as many as it has queries, on the CPU.

    Each is `boxes_xyxy` (k, 4) in annotated pixels, `scores` (k,), falling, and `labels` (k,), below num_labels.
    """
    batch = batch.to(precision.device)
    with precision.autocast():
        outputs = model(*model_inputs(batch, config.input_channels))
    sizes_px = torch.tensor([target["size_px"] for target in batch.targets], device=batch.images.device)
    found = detections(outputs, sizes_px, config.num_queries, num_labels, batch.frames_px())
    return [{name: value.cpu() for name, value in one.items()} for one in found]


def tile_corners(height: int, width: int, tile_px: int, overlap: float) -> list[tuple[int, int]]:
    """(top, left) of tiles that cover a picture, evenly spread, each overlapping the next by `overlap` or more."""
    return [(top, left) for top in _starts(height, tile_px, overlap) for left in _starts(width, tile_px, overlap)]


def _starts(length: int, tile_px: int, overlap: float) -> list[int]:
    if length <= tile_px:
        return [0]
    count = math.ceil((length - tile_px) / (tile_px * (1 - overlap))) + 1
    return [round(i * (length - tile_px) / (count - 1)) for i in range(count)]


def join_tiles(found: Sequence[dict[str, Tensor]], corners: Sequence[tuple[int, int]], limit: int) -> dict[str, Tensor]:
    """The detections of all tiles in the picture's pixels; of one object seen by several tiles the best one.

    Each is a dict of boxes_xyxy (k, 4) in the tile's pixels, scores (k,), labels (k,); so is the result, best first.
    """
    boxes_xyxy = torch.cat([
        one["boxes_xyxy"] + one["boxes_xyxy"].new_tensor([left, top, left, top])
        for one, (top, left) in zip(found, corners, strict=True)
    ])  # fmt: skip
    scores, labels = (torch.cat([one[key] for one in found]) for key in ("scores", "labels"))
    kept = batched_nms(boxes_xyxy, scores, labels, NMS_IOU)[:limit]
    return {"boxes_xyxy": boxes_xyxy[kept], "scores": scores[kept], "labels": labels[kept]}
