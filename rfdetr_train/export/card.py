"""The card of an exported detector: all that a program needs besides the weights, as plain values."""

from dataclasses import asdict
from typing import Any

from rfdetr_train.checkpoint.environment import versions
from rfdetr_train.data.transforms import IMAGENET_MEAN, IMAGENET_STD
from rfdetr_train.engine.saved_run import TrainedModel

BOXES, LOGITS = "boxes_xyxy", "logits"
"""The outputs of an exported program, in this order."""

MERGED = {"lora_rank": 0, "lora_alpha": None, "lora_dropout": 0.0}
"""Adapters are merged into what is exported."""
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
    (height, width), loop = config.size_px, trained.saved["loop"]
    letterbox = "the aspect ratio kept, padded below and to the right"
    aspect = letterbox if trained.placement.letterbox else "the aspect ratio not kept"
    scores = [scored for scored in (loop["best"], loop["last"]) if scored and scored["step"] == loop["step"]]
    return {
        "model": {**asdict(config), **MERGED},
        "classes": [{"label": label, **entry} for label, entry in trained.label_map.to_plain().items()],
        "preprocessing": {
            "input": f"images (batch, {config.input_channels}, {height}, {width}), float32, 0..1: bytes over 255",
            "channels": "RGB" if config.input_channels == 3 else "luminance (ITU-R 601)",
            "resize": f"to {height} x {width}, bilinear with antialias, {aspect}",
            "normalisation": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "done_by_the_file": program},
        },
        "outputs": PROGRAM_OUTPUTS if program else WEIGHTS_OUTPUTS,
        "postprocessing": POSTPROCESSING,
        "metrics": next((scored for scored in scores if scored["weights"] == trained.weights), None),
        "source": {"checkpoint": trained.saved.path.name, "weights": trained.weights, "step": loop["step"]},
        "versions": versions(),
    }
