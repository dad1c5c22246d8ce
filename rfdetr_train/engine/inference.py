"""From a batch to what a detector finds in it."""

import torch
from torch import Tensor, nn

from rfdetr_train.data.sample import Batch
from rfdetr_train.data.transforms import model_inputs
from rfdetr_train.engine.precision import Precision
from rfdetr_train.postprocess import detections


@torch.no_grad()  # in inference mode autocast would not keep its copies of the weights, see `Precision.kept_casts`
def detect(
    model: nn.Module,
    batch: Batch,
    precision: Precision,
    *,
    num_detections: int,
    num_labels: int,
    input_channels: int = 3,
) -> list[dict[str, Tensor]]:
    """The best `num_detections` of each picture by a model in evaluation mode, on the CPU.

    Each is `boxes_xyxy` (k, 4) in annotated pixels, `scores` (k,), falling, and `labels` (k,), below num_labels.
    """
    batch = batch.to(precision.device)
    with precision.autocast():
        outputs = model(*model_inputs(batch, input_channels))
    sizes_px = torch.tensor([target["size_px"] for target in batch.targets], device=batch.images.device)
    found = detections(outputs, sizes_px, num_detections, num_labels, batch.frames_px())
    return [{name: value.cpu() for name, value in one.items()} for one in found]
