"""A detector as an ONNX file, checked with onnxruntime."""

import json
import logging
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from rfdetr_train.engine.trained_model import TrainedModel
from rfdetr_train.errors import UserError
from rfdetr_train.export.card import BOXES, LOGITS
from rfdetr_train.export.program import DeployedDetector, Outputs, check_agreement, exported_program

DEFAULT_OPSET = 20


def require_onnx() -> None:
    """Refuse before work starts where a package is missing."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UserError(f"format=onnx: pip install {' '.join(missing)}; the extra `export` brings them all")


def onnx_file(trained: TrainedModel, card: dict[str, Any], opset: int | None) -> bytes:
    """An ONNX model with a dynamic batch; each entry of the card is a property of its metadata, as JSON."""
    import onnx

    detector = DeployedDetector(trained)
    for library in ("onnxscript", "onnx_ir"):  # they tell of every operator that they do not fold
        logging.getLogger(library).setLevel(logging.ERROR)
    converted = torch.onnx.export(
        exported_program(detector),
        dynamo=True,
        verbose=False,
        opset_version=opset or DEFAULT_OPSET,
        input_names=["images"],
        output_names=[BOXES, LOGITS],
        dynamic_shapes=({0: "batch"},),
        external_data=False,
    )
    assert converted is not None
    model = converted.model_proto
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in card.items()})
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    check_agreement(_session(content), detector, "onnx")
    return content


def _session(content: bytes) -> Any:
    """The file as a function, run by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Outputs:
        boxes, logits = session.run([BOXES, LOGITS], {"images": images.numpy()})
        return torch.from_numpy(boxes), torch.from_numpy(logits)

    return run
