from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rfdetr_train.config import TRANSFORMER_KEYS, FreezeConfig, FreezePartConfig, ModelConfig
from rfdetr_train.engine.freezing import FrozenParts
from rfdetr_train.models.rfdetr import RFDETR, build_model


@pytest.fixture
def resnet(small_config: Callable[..., ModelConfig]) -> RFDETR:
    return build_model(small_config(**dict.fromkeys(TRANSFORMER_KEYS), backbone="test_resnet"), num_classes=2)


def statistics(model: RFDETR) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.named_buffers() if "running" in name}


def freeze(model: RFDETR, **encoder: object) -> FrozenParts:
    return FrozenParts(model, model.parameter_roles(), FreezeConfig(encoder=FreezePartConfig(**encoder)))


def test_a_frozen_batch_norm_keeps_its_statistics_until_it_trains(resnet: RFDETR) -> None:
    frozen_parts = freeze(resnet, until_epoch=1)
    before, images = statistics(resnet), torch.randn(2, 3, 64, 64)
    frozen = resnet.train().backbone(images)
    assert before
    assert all(torch.equal(value, before[name]) for name, value in statistics(resnet).items())
    expected = resnet.eval().backbone(images)
    assert all(torch.equal(one, other) for one, other in zip(frozen, expected, strict=True))

    assert not frozen_parts.thaw(0)
    assert list(frozen_parts.thaw(1)) == ["encoder"]
    assert not frozen_parts.thaw(1)
    resnet.train().backbone(images)
    assert not any(torch.equal(value, before[name]) for name, value in statistics(resnet).items())


def test_a_batch_norm_that_trains_takes_statistics(resnet: RFDETR) -> None:
    freeze(resnet)
    before = statistics(resnet)
    resnet.train().backbone(torch.randn(2, 3, 64, 64))
    assert not any(torch.equal(value, before[name]) for name, value in statistics(resnet).items())


def test_what_adapters_have_frozen_stays_so(small_config: Callable[..., ModelConfig]) -> None:
    pytest.importorskip("peft")
    model = build_model(small_config(lora_rank=2), num_classes=2)
    adapters = {name for name, p in model.backbone.named_parameters() if p.requires_grad}
    freeze(model, until_epoch=1).thaw(1)
    assert {name for name, p in model.backbone.named_parameters() if p.requires_grad} == adapters
