import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from rfdetr_train.checkpoint.reference_run import (
    COMMON_SIZES,
    VARIANT_KEYS,
    VARIANT_SIZES,
    model_config_from_reference,
)
from rfdetr_train.checkpoint.starting_weights import read_weights
from rfdetr_train.cli import compose_config
from rfdetr_train.config import ModelConfig
from rfdetr_train.engine.saved_run import TrainedModel, load_trained_model
from rfdetr_train.errors import UserError
from rfdetr_train.export.weights_file import reference_config, reference_file, safetensors_file
from rfdetr_train.labels import LabelMap


def model_config(*overrides: str) -> ModelConfig:
    return compose_config("train", list(overrides)).model


@pytest.mark.parametrize("name", ["nano", "small", "medium", "large", "base"])
def test_sizes_are_those_of_the_reference_package(name: str) -> None:
    sizes = dict(zip(VARIANT_KEYS, VARIANT_SIZES[f"RFDETR{name.capitalize()}"], strict=True))
    config = replace(model_config(f"model={name}"), feature_blocks=sizes["out_feature_indexes"])  # null: by the model
    assert reference_config(config) == COMMON_SIZES | sizes | {"num_select": 300}
    told = ModelConfig(**model_config_from_reference({"model_name": f"RFDETR{name.capitalize()}"}))
    assert reference_config(told) == COMMON_SIZES | sizes | {"num_select": 300}


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


def test_a_reference_file_is_a_detector_here_too(nano: TrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    path.write_bytes(reference_file(nano))
    loaded = load_trained_model(path)
    assert loaded.label_map == LabelMap((0, 1, 2), ("ant", "bee", "zebra"))  # the file knows no ids
    own = nano.model.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in loaded.model.state_dict().items())
    assert loaded.model.config.size_px == (384, 384)

    content = torch.load(path, weights_only=True)
    del content["args"]["class_names"]
    torch.save(content, path)
    with pytest.raises(UserError, match=r"does not tell which logit is which class.*weights="):
        load_trained_model(path)


def test_the_published_logits_are_those_of_cocos_classes(nano: TrainedModel, tmp_path: Path) -> None:
    content = torch.load(io.BytesIO(reference_file(nano)), weights_only=True)
    del content["args"]["class_names"]
    for name, value in content["model"].items():
        if "class_embed" in name:  # row k of 91 holds k
            content["model"][name] = torch.arange(91.0).view(91, *[1] * (value.ndim - 1)).expand(91, *value.shape[1:])
    torch.save(content, tmp_path / "published.pth")
    loaded = load_trained_model(tmp_path / "published.pth")
    assert len(loaded.label_map.names) == 80
    label_of_name = dict(zip(loaded.label_map.names, range(80), strict=True))
    for name, category_id in (("person", 1), ("stop sign", 13), ("toothbrush", 90)):  # of instances_val2017.json
        label = label_of_name[name]
        assert loaded.label_map.category_ids[label] == category_id
        assert loaded.model.class_embed.bias[label].item() == category_id


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
