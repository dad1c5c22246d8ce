"""A detector of a few thousand random weights, as if it came from a checkpoint."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rfdetr_train.config import ModelConfig
from rfdetr_train.engine.saved_run import SavedRun, TrainedModel
from rfdetr_train.labels import LabelMap
from rfdetr_train.models.rfdetr import build_model

LABELS = LabelMap((3, 17, 90), ("ant", "bee", "zebra"))


def as_trained(config: ModelConfig) -> TrainedModel:
    torch.manual_seed(0)
    model = build_model(config, len(LABELS.names))
    with torch.no_grad():
        for parameter in model.parameters():  # what starts at zero must count
            parameter += 0.02 * torch.randn_like(parameter)
    scored = {"best": {"step": 3, "weights": "raw", "AP": 0.5}, "last": {"step": 4, "weights": "ema", "AP": 0.4}}
    content = {"loop": {**scored, "step": 3}, "config": {"data": {}}}
    return TrainedModel(model.eval(), LABELS, "raw", SavedRun(Path("runs/a/checkpoints/best.pt"), content))


@pytest.fixture(scope="session")
def make_trained() -> Callable[[ModelConfig], TrainedModel]:
    return as_trained


@pytest.fixture
def trained(small_config: Callable[..., ModelConfig]) -> TrainedModel:
    return as_trained(small_config())
