import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from rfdetr_train.checkpoint.starting_weights import read_weights
from rfdetr_train.cli import compose_config
from rfdetr_train.config import ModelConfig
from rfdetr_train.engine.trained_model import TrainedModel
from rfdetr_train.errors import UserError
from rfdetr_train.export.weights_file import reference_config, reference_file, safetensors_file

COMMON = {"encoder": "dinov2_windowed_small", "hidden_dim": 256, "sa_nheads": 8, "ca_nheads": 16, "dec_n_points": 2,
          "num_queries": 300, "num_select": 300, "group_detr": 13}  # fmt: skip
"""What the config classes of rfdetr 1.11.2 have in common; below, what they differ in."""
PUBLISHED = {
    "nano": (384, 24, 16, 2, 2, [3, 6, 9, 12]),
    "small": (512, 32, 16, 2, 3, [3, 6, 9, 12]),
    "medium": (576, 36, 16, 2, 4, [3, 6, 9, 12]),
    "large": (704, 44, 16, 2, 4, [3, 6, 9, 12]),
    "base": (560, 37, 14, 4, 3, [2, 5, 8, 11]),
}


def model_config(*overrides: str) -> ModelConfig:
    return compose_config("train", list(overrides)).model


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_those_of_the_reference_package(name: str) -> None:
    keys = ("resolution", "positional_encoding_size", "patch_size", "num_windows", "dec_layers",
            "out_feature_indexes")  # fmt: skip
    sizes = dict(zip(keys, PUBLISHED[name], strict=True))
    config = replace(
        model_config(f"model={name}"), feature_blocks=sizes["out_feature_indexes"]
    )  # null is settled by a model
    assert reference_config(config) == COMMON | sizes


@pytest.fixture(scope="module")
def nano(make_trained: Callable[[ModelConfig], TrainedModel]) -> TrainedModel:
    return make_trained(model_config("model=nano"))


def test_a_reference_file_holds_what_its_loader_asks_for(nano: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "model.pth").write_bytes(reference_file(nano))
    content = torch.load(tmp_path / "model.pth", weights_only=True)
    assert content["model_name"] == "RFDETRNano"
    assert content["args"]["class_names"] == ["ant", "bee", "zebra"]
    assert content["model_config"]["num_classes"] == content["args"]["num_classes"] == 3
    assert content["args"]["patch_size"] == 16
    # nano has 465 tensors and, with 91 logits, 30,467,298 numbers; here there are 4, in each of 14 class heads
    assert len(content["model"]) == 465
    assert sum(tensor.numel() for tensor in content["model"].values()) == 30_467_298 - 14 * 87 * 257

    start = read_weights(tmp_path / "model.pth")
    assert start.class_names == ("ant", "bee", "zebra", None)
    own = nano.model.state_dict()
    assert start.state.keys() == own.keys()
    assert all(torch.equal(start.state[name], own[name]) for name in own)


@pytest.mark.parametrize(
    "override",
    ["model.encoder_width=96", "model.encoder_depth=6", "model.ffn_dim=512", "model.backbone=vit_tiny_patch16_224"],
)
def test_what_the_reference_package_lacks_is_refused_with_the_way_out(override: str) -> None:
    with pytest.raises(UserError, match=f"{override}: the reference package has no such model; use format=safetensors"):
        reference_config(model_config("model=nano", override))


def test_safetensors_hold_the_weights_and_the_card(trained: TrainedModel, tmp_path: Path) -> None:
    card: dict[str, Any] = {"classes": [{"label": 0, "id": 3, "name": "ant"}], "metrics": None}
    (tmp_path / "model.safetensors").write_bytes(safetensors_file(trained, card))
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert {key: json.loads(value) for key, value in file.metadata().items()} == card
        own = trained.model.state_dict()
        assert set(file.keys()) == own.keys()
        assert all(torch.equal(file.get_tensor(name), own[name]) for name in own)
