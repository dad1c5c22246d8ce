"""Each family of backbones learns, and its parameter groups follow its depth."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from rfdetr_train.config import TRANSFORMER_KEYS, AdamWConfig, ModelConfig
from rfdetr_train.criterion import Criterion
from rfdetr_train.matcher import match
from rfdetr_train.models import pyramid
from rfdetr_train.models.rfdetr import RFDETR, build_model
from rfdetr_train.models.timm_network import create_network
from rfdetr_train.optim.optimizers import build_optimizer
from rfdetr_train.optim.param_groups import annotate, check_groups

TRANSFORMERS = [
    "vit_small_patch14_dinov2",
    "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_dinov3",
    "vit_base_patch16_siglip_224",
    "eva02_tiny_patch14_224",
    "vit_tiny_patch16_224",
]
PYRAMIDS = {
    "test_resnet": {},
    "test_convnext": {},
    "swin_tiny_patch4_window7_224": {"embed_dim": 24, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 2, 2)},
    "test_efficientnet": {},
}
STEPS = 20


@pytest.fixture(scope="module", params=[*TRANSFORMERS, *PYRAMIDS])
def model(request: pytest.FixtureRequest, small_config: Callable[..., ModelConfig]) -> Iterator[RFDETR]:
    name = request.param
    sizes = dict.fromkeys(TRANSFORMER_KEYS) if name in PYRAMIDS else {"encoder_depth": 4, "feature_blocks": None}
    config = small_config(backbone=name, levels=["P3", "P4", "P5"], num_queries=5, **sizes)
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyramid, "create_network", partial(create_network, **PYRAMIDS.get(name, {})))
        yield build_model(config, num_classes=2)


def squares() -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Two pictures with a bright square each, at another place and of another class."""
    images = 0.1 * torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    images[0, :, 8:32, 8:32] += 1.0
    images[1, :, 32:56, 24:48] -= 1.0
    boxes = ([20 / 64, 20 / 64, 24 / 64, 24 / 64], [36 / 64, 44 / 64, 24 / 64, 24 / 64])
    return images, [{"labels": torch.tensor([k]), "boxes_cxcywh": torch.tensor([box])} for k, box in enumerate(boxes)]


def test_every_family_learns_a_batch(model: RFDETR) -> None:
    config = AdamWConfig(lr=2e-3, encoder_lr=2e-3)
    annotated = annotate(model.named_parameters(), model.parameter_roles(), config)
    optimizer = build_optimizer(config, annotated, torch.device("cpu"))
    check_groups(optimizer.param_groups, annotated)
    assert len(annotated) == len(list(model.parameters()))
    images, targets = squares()
    criterion, losses = Criterion(5, match), []
    for _ in range(STEPS):
        loss = criterion(model.train()(images), targets, num_boxes=4)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5]), losses
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@torch.no_grad()
def test_rates_fall_from_the_last_layer_to_the_first(model: RFDETR) -> None:
    """Layers counted by timm, order as the modules run: what runs later never lies lower."""
    runs: list[str] = []
    modules = {
        name: module for name, module in model.backbone.named_modules() if list(module.parameters(recurse=False))
    }
    hooks = [m.register_forward_hook(lambda *_, name=name: runs.append(name)) for name, m in modules.items()]
    model.eval()(squares()[0])
    for hook in hooks:
        hook.remove()
    roles = model.parameter_roles()
    depths = {
        name: {roles[f"backbone.{name}.{leaf}"].layers_above for leaf, _ in module.named_parameters(recurse=False)}
        for name, module in modules.items()
        if name in runs
    }
    last_runs = sorted(depths, key=lambda name: len(runs) - runs[::-1].index(name))
    in_order = [depth for name in last_runs for depth in depths[name]]
    assert in_order == sorted(in_order, reverse=True)
    everywhere = {role.layers_above for role in roles.values() if role.part == "encoder"}
    assert everywhere - {0} == set(range(max(everywhere) - len(everywhere - {0}) + 1, max(everywhere) + 1))
    assert len(everywhere) > 4
