"""The card of an exported detector: all that a program needs besides the weights, as plain values."""

from dataclasses import asdict
from typing import Any

from rfdetr_train.checkpoint.versions import versions
from rfdetr_train.data.transforms import IMAGENET_MEAN, IMAGENET_STD
from rfdetr_train.engine.trained_model import TrainedModel

BOXES, LOGITS = "boxes_xyxy", "logits"
"""The outputs of an exported program, in this order."""

PROGRAM_OUTPUTS = {
    BOXES: "(batch, queries, 4): left, top, right, bottom as fractions 0..1 of the picture",
    LOGITS: "(batch, queries, classes): one for each of `classes`, in their order",
}
WEIGHTS_OUTPUTS = {
    "boxes_cxcywh": "(batch, queries, 4): centre and size as fractions of the picture, not bounded",
    LOGITS: "(batch, queries, classes + 1): one for each of `classes`, in their order; leave out the last",
}
POSTPROCESSING = (
    "score = sigmoid(logit); an image's detections are the (query, class) pairs of highest score, as many as there are "
    "queries at most; x times the picture's width and y times its height gives pixels; no suppression of overlaps"
)


def model_card(trained: TrainedModel, *, program: bool) -> dict[str, Any]:
    """The card; `program` says whether the file runs by itself, normalising its input, or holds weights alone."""
    config = trained.model.config
    side, loop = config.resolution, trained.saved["loop"]
    scores = [scored for scored in (loop["best"], loop["last"]) if scored and scored["step"] == loop["step"]]
    return {
        "model": asdict(config),
        "classes": [{"label": label, **entry} for label, entry in trained.label_map.to_plain().items()],
        "preprocessing": {
            "input": f"images (batch, 3, {side}, {side}), float32, RGB, 0..1 (8-bit values over 255)",
            "resize": f"to {side} x {side}, bilinear with antialias, the aspect ratio not kept",
            "normalisation": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "done_by_the_file": program},
        },
        "outputs": PROGRAM_OUTPUTS if program else WEIGHTS_OUTPUTS,
        "postprocessing": POSTPROCESSING,
        "metrics": next((scored for scored in scores if scored["weights"] == trained.weights), None),
        "source": {"checkpoint": trained.path.name, "weights": trained.weights, "step": loop["step"]},
        "versions": versions(),
    }
