"""What several test folders share: the numbers that the reference package computed for a detector of toy width."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from seeded_weights import seeded

from rfdetr_train.checkpoint.reference_weights import from_reference
from rfdetr_train.config import ModelConfig
from rfdetr_train.models.rfdetr import RFDETR, build_model

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def reference_toy() -> dict:
    """Weights, inputs, outputs, losses and gradients of the reference; treat it as constant."""
    return torch.load(FIXTURES / "reference_toy.pt", weights_only=True)


@pytest.fixture(scope="session")
def reference_targets(reference_toy: dict) -> list[dict]:
    """Its targets as the criterion takes them."""
    return [{"labels": t["labels"], "boxes_cxcywh": t["boxes"]} for t in reference_toy["targets"]]


@pytest.fixture
def toy_config() -> ModelConfig:
    """The sizes of the reference's toy."""
    return ModelConfig(
        name="toy",
        resolution=128,
        encoder_width=48,
        encoder_depth=12,
        encoder_heads=3,
        hidden_dim=32,
        decoder_layers=2,
        self_attention_heads=4,
        cross_attention_heads=4,
        num_queries=20,
        group_detr=3,
    )


@pytest.fixture
def toy_model(toy_config: ModelConfig, reference_toy: dict) -> RFDETR:
    """The toy detector with the reference's weights."""
    model = build_model(toy_config, num_classes=5)
    model.load_state_dict(from_reference(reference_toy["state_dict"]))
    return model


@pytest.fixture(scope="session")
def reference_pyramid() -> dict:
    """What the reference computes for a toy with the levels P3 and P5; treat it as constant."""
    return torch.load(FIXTURES / "reference_pyramid.pt", weights_only=True)


@pytest.fixture
def pyramid_model(toy_config: ModelConfig, reference_pyramid: dict) -> RFDETR:
    """The toy with P3 and P5 and the same weights, which come from seeds."""
    config = dataclasses.replace(toy_config, resolution=96, levels=["P3", "P5"])
    model = build_model(config, num_classes=5)
    shapes = reference_pyramid["shapes"].items()
    weights = {name: seeded(f"weight of {name}", shape, like_weight=True) for name, shape in shapes}
    model.load_state_dict(from_reference(weights))
    return model


@pytest.fixture(scope="session")
def small_config() -> Callable[..., ModelConfig]:
    """`small_config(key=value, ...)`: a detector of a few thousand weights that runs in milliseconds."""

    def config(**changes: Any) -> ModelConfig:
        return dataclasses.replace(SMALL_CONFIG, **changes)

    return config


SMALL_CONFIG = ModelConfig(
    name="small",
    resolution=64,
    encoder_width=24,
    encoder_depth=2,
    encoder_heads=2,
    patch_size=8,
    feature_blocks=[1, 2],
    hidden_dim=32,
    decoder_layers=2,
    self_attention_heads=2,
    cross_attention_heads=2,
    ffn_dim=32,
    num_queries=10,
    group_detr=2,
)
