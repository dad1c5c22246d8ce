"""`python -m rfdetr_train export`: a trained detector in a form that other programs take."""

import logging
from pathlib import Path

from rfdetr_train.atomic_file import replacing
from rfdetr_train.config import ExportConfig
from rfdetr_train.engine.saved_run import TrainedModel, load_trained_model
from rfdetr_train.errors import UserError
from rfdetr_train.export.card import model_card
from rfdetr_train.export.program import onnx_file, require_onnx, torch_export_file
from rfdetr_train.export.weights_file import reference_file, safetensors_file
from rfdetr_train.loggers.files import write_json

log = logging.getLogger(__name__)

SUFFIXES = {"onnx": ".onnx", "torch_export": ".pt2", "safetensors": ".safetensors", "reference": ".pth"}


def export(config: ExportConfig, run_dir: Path) -> None:
    """Write `model.*` as `config.format` asks, checked, and its card `model.json` into `run_dir`."""
    if config.format == "onnx":
        require_onnx()
    trained = load_trained_model(config.checkpoint, config.weights)
    log.info("%s (%s weights) as %s", trained.saved.path, trained.weights, config.format)
    _check_input(trained, config.format)
    card = model_card(trained, program=config.format in ("onnx", "torch_export"))
    if config.format == "onnx":
        content = onnx_file(trained, card, config.opset)
    elif config.format == "torch_export":
        content = torch_export_file(trained, card)
    elif config.format == "safetensors":
        content = safetensors_file(trained, card)
    else:
        content = reference_file(trained)
    path = run_dir / f"model{SUFFIXES[config.format]}"
    with replacing(path) as file:
        file.write(content)
    write_json(path.with_suffix(".json"), card)
    log.info("exported: %s", path)


def _check_input(trained: TrainedModel, wanted: str) -> None:
    """Refuse inputs that only weights can leave to their user: padding, and pictures of other than three channels."""
    channels = trained.model.config.input_channels
    what = "letterboxed pictures" if trained.placement.letterbox else f"{channels} channels" if channels != 3 else None
    if what and wanted != "safetensors":
        raise UserError(f"format={wanted}: the detector was trained on {what}, which such a file does not take; use "
                        "format=safetensors")  # fmt: skip
