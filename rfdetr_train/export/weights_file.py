"""A detector's weights alone: as safetensors, and as a checkpoint of the reference package."""

import io
import json
from dataclasses import fields
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from rfdetr_train.checkpoint.reference_run import SIZES
from rfdetr_train.checkpoint.reference_weights import from_reference, to_reference
from rfdetr_train.config import ModelConfig
from rfdetr_train.engine.saved_run import TrainedModel
from rfdetr_train.errors import require

REFERENCE_ENCODERS = {
    "vit_small_patch14_dinov2": "dinov2_windowed_small",
    "vit_base_patch14_dinov2": "dinov2_windowed_base",
}
NO_MATTER = ("backbone", "pretrained", "lora_rank", "lora_alpha", "lora_dropout")
"""Keys that leave no trace in the weights, or are translated on their own. Of those neither here nor in `SIZES` the
reference package knows only our defaults."""


def safetensors_file(trained: TrainedModel, card: dict[str, Any]) -> bytes:
    """The state dict under our names; each entry of the card is an entry of the header, as JSON."""
    state = {name: tensor.contiguous() for name, tensor in trained.state_dict().items()}
    content = save(state, {key: json.dumps(value) for key, value in card.items()})
    assert _equal(load(content), state)
    return content


def reference_file(trained: TrainedModel) -> bytes:
    """What rfdetr 1.11's `RFDETR.from_checkpoint` and `RFDETRNano(pretrain_weights=...)` load; plain values.

    Raises UserError where the model has a part that the reference package has not.
    """
    config, state, names = trained.model.config, trained.state_dict(), trained.label_map.names
    sizes = {"num_classes": len(names), **reference_config(config), "segmentation_head": False}
    published = config.name in ("nano", "small", "medium", "large", "base")
    content = {
        "model": to_reference(state),
        "args": {"class_names": list(names), **sizes},
        "model_name": f"RFDETR{config.name.capitalize() if published else 'Nano'}",  # sizes of its own win over nano's
        "model_config": sizes,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    buffer.seek(0)
    assert _equal(from_reference(torch.load(buffer, weights_only=True)["model"]), state)
    return buffer.getvalue()


def reference_config(config: ModelConfig) -> dict[str, Any]:
    """The sizes of a model under the reference package's names.

    Raises UserError where it has no name for one of them.
    """
    remedy = "the reference package has no such model; use format=safetensors, onnx or torch_export"
    require(config.backbone in REFERENCE_ENCODERS, "model.backbone", config.backbone, remedy)
    defaults = ModelConfig(name=config.name, resolution=384)
    for key in {field.name for field in fields(config)} - {*SIZES, *NO_MATTER, "name"}:
        require(getattr(config, key) == getattr(defaults, key), f"model.{key}", getattr(config, key), remedy)
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZES.items()}
    return {
        **sizes,
        "encoder": REFERENCE_ENCODERS[config.backbone],
        "positional_encoding_size": config.position_grid or config.resolution // config.cell_px,
        "num_select": config.num_queries,
    }


def _equal(loaded: dict[str, Tensor], state: dict[str, Tensor]) -> bool:
    return loaded.keys() == state.keys() and all(torch.equal(loaded[name], state[name]) for name in state)
