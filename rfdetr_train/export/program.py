"""A detector as a program that runs by itself, a graph of torch.export or ONNX, checked to answer as before.

B batch, R side of the input in pixels, Q queries, C classes.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from rfdetr_train.boxes import cxcywh_to_xyxy
from rfdetr_train.data.transforms import IMAGENET_MEAN, IMAGENET_STD
from rfdetr_train.engine.saved_run import TrainedModel
from rfdetr_train.errors import UserError
from rfdetr_train.export.card import BOXES, LOGITS

log = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest difference of a box, as a fraction of the picture, or of a logit."""
DEFAULT_OPSET = 20
BATCH_SIZES = (1, 2, 5)
CLEAR_GAP = 1e-5
"""Two tokens whose scores differ by more keep their order whatever the rounding of float32."""
MOST_PICTURES = 64

Outputs = tuple[Tensor, Tensor]


class DeployedDetector(nn.Module):
    """The detector with its normalisation, and with outputs that can be read without knowing it."""

    mean: Tensor
    std: Tensor

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.model = trained.model
        self.num_classes = len(trained.label_map.names)
        self.size_px = trained.model.config.size_px
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(IMAGENET_STD).view(3, 1, 1))

    def forward(self, images: Tensor) -> Outputs:
        """(B, 3, H, W) RGB in 0..1 -> xyxy (B, Q, 4) in 0..1, fractions of the picture, and logits (B, Q, C)."""
        outputs = self.model((images - self.mean) / self.std)
        boxes_xyxy = cxcywh_to_xyxy(outputs["boxes_cxcywh"]).clamp(0.0, 1.0)
        return boxes_xyxy, outputs["logits"][..., : self.num_classes]

    @torch.no_grad()
    def smallest_gap(self, images: Tensor) -> float:
        """The smallest distance between the scores of two picked tokens that follow each other."""
        scores = self.model((images - self.mean) / self.std)["enc"]["logits"].amax(dim=-1)
        return float((scores[:, :-1] - scores[:, 1:]).min())


def exported_program(detector: DeployedDetector) -> ExportedProgram:
    """The graph for any batch size."""
    example = torch.rand(2, 3, *detector.size_px)  # from a batch of 1 torch would make it static
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "While compiling, we found certain side effects")  # timm's kernel switch
        program = torch.export.export(detector, (example,), dynamic_shapes=({0: Dim("batch", min=1)},), strict=True)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names this machine's folders
    return program


def torch_export_file(trained: TrainedModel, card: dict[str, Any]) -> bytes:
    """A `.pt2` file for `torch.export.load`, with the card as its extra file `card.json`."""
    detector = DeployedDetector(trained)
    buffer = io.BytesIO()
    torch.export.save(exported_program(detector), buffer, extra_files={"card.json": json.dumps(card)})
    reloaded = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    check_agreement(reloaded, detector, "torch_export")
    return buffer.getvalue()


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
    check_agreement(_onnx_session(content), detector, "onnx")
    return content


def _onnx_session(content: bytes) -> Any:
    """The file as a function, run by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Outputs:
        boxes, logits = session.run([BOXES, LOGITS], {"images": images.numpy()})
        return torch.from_numpy(boxes), torch.from_numpy(logits)

    return run


@torch.no_grad()
def check_agreement(program: Callable[[Tensor], Outputs], detector: DeployedDetector, name: str) -> None:
    """Compare boxes and logits on random pictures, in several batch sizes.

    Raises UserError where one of them differs by more than the tolerance.
    """
    pictures = clear_pictures(detector, max(BATCH_SIZES))
    differences = []
    for size in BATCH_SIZES:
        pairs = zip(program(pictures[:size]), detector(pictures[:size]), strict=True)
        differences.append(float(torch.cat([(answer - wanted).abs().flatten() for answer, wanted in pairs]).max()))
        if not differences[-1] <= TOLERANCE:
            raise UserError(
                f"format={name}: on random pictures in a batch of {size} the program differs from the detector by "
                f"{differences[-1]:.1e}, more than {TOLERANCE:.0e}; nothing was written"
            )
    log.info("format=%s agrees with PyTorch within %.1e, in batches of 1, 2 and 5 pictures", name, max(differences))


def clear_pictures(detector: DeployedDetector, count: int) -> Tensor:
    """Random pictures (count, 3, R, R) whose tokens are clearly ranked.

    The token of rank k meets the learned query k. Where two tokens have nearly the same score, rounding says which
    comes first, and two exact implementations answer differently; such a picture tells nothing.
    """
    generator = torch.Generator().manual_seed(0)
    found: list[tuple[float, Tensor]] = []
    for _ in range(MOST_PICTURES):
        picture = torch.rand(1, 3, *detector.size_px, generator=generator)
        found.append((detector.smallest_gap(picture), picture))
        found = sorted(found, key=lambda pair: pair[0])[-count:]
        if len(found) == count and found[0][0] > CLEAR_GAP:
            break
    return torch.cat([picture for _, picture in found])
