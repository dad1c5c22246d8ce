import sys
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch

from rfdetr_train.adapters import merge_adapters, under_adapters
from rfdetr_train.config import TRANSFORMER_KEYS, ModelConfig
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import RFDETR, build_model

pytest.importorskip("peft")

LINEAR = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


@pytest.fixture
def adapted(small_config: Callable[..., ModelConfig]) -> RFDETR:
    """Adapters of rank 4 whose output counts half, away from the zeros that they start with."""
    torch.manual_seed(0)
    model = build_model(small_config(lora_rank=4, lora_alpha=2), num_classes=2).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return model


def test_adapters_alone_train_in_the_encoder_at_the_rate_of_their_block(adapted: RFDETR) -> None:
    encoder = {name for name, p in adapted.named_parameters() if name.startswith("backbone.") and p.requires_grad}
    assert encoder == {
        f"backbone.vit.blocks.{i}.{layer}.lora_{m}.default.weight" for i in (0, 1) for layer in LINEAR for m in "AB"
    }
    assert all(p.requires_grad for name, p in adapted.named_parameters() if not name.startswith("backbone."))
    roles = adapted.parameter_roles()
    for index, above in ((0, 3), (1, 2)):  # L = 2 + 1
        for layer in ("lora_A.default", "lora_B.default", "base_layer"):
            assert roles[f"backbone.vit.blocks.{index}.attn.qkv.{layer}.weight"].layers_above == above


@torch.no_grad()
def test_merged_weights_give_the_same_outputs_under_the_plain_names(adapted: RFDETR, small_config) -> None:
    plain = build_model(small_config(), num_classes=2).eval()
    merged = merge_adapters(adapted.state_dict(), adapted.config.lora_alpha)
    plain.load_state_dict(merged)
    name = "backbone.vit.blocks.1.mlp.fc1"
    base, down, up = (
        adapted.get_parameter(f"{name}.{part}.weight") for part in ("base_layer", "lora_A.default", "lora_B.default")
    )
    torch.testing.assert_close(merged[f"{name}.weight"], base + 0.5 * up @ down)

    images = torch.randn(2, 3, 64, 64)
    for actual, expected in zip(plain.backbone(images), adapted.backbone(images), strict=True):
        assert (actual - expected).abs().max() < 1e-6 * expected.abs().max()
    ours, theirs = plain(images), adapted(images)
    for key in ("logits", "boxes_cxcywh"):
        assert (ours[key] - theirs[key]).abs().max() < 1e-5


def test_a_model_without_adapters_is_merged_already(toy_model: RFDETR) -> None:
    state = toy_model.state_dict()
    merged = merge_adapters(state, toy_model.config.lora_alpha)
    assert merged.keys() == state.keys()
    assert all(torch.equal(merged[name], state[name]) for name in state)


@torch.no_grad()
def test_base_weights_load_and_the_first_adapters_change_nothing(small_config) -> None:
    plain = build_model(small_config(), num_classes=2).eval()
    adapted = build_model(small_config(lora_rank=2, lora_dropout=0.5), num_classes=2).eval()
    left = adapted.load_state_dict(under_adapters(plain.state_dict(), adapted.state_dict()), strict=False)
    assert not left.unexpected_keys
    assert all(".lora_" in name for name in left.missing_keys)
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(plain(images)["logits"], adapted(images)["logits"])
    adapted.backbone.train()
    assert torch.equal(plain.backbone(images)[1], adapted.backbone(images)[1])  # dropout of nothing


def test_a_copy_of_the_model_has_adapters_and_attention_of_its_own(adapted: RFDETR) -> None:
    copy = deepcopy(adapted)
    assert not {id(p) for p in copy.parameters()} & {id(p) for p in adapted.parameters()}
    assert set(map(id, copy.backbone.attentions)) <= {id(module) for module in copy.modules()}


@pytest.mark.parametrize("name", ["eva_giant_patch14_224", "vit_base_patch16_clip_224", "vit_small_patch16_dinov3"])
def test_every_adapter_of_every_kind_of_attention_acts(small_config, name: str) -> None:
    """timm takes the weight of a joined projection past its layer where queries and values have biases of their own."""
    model = build_model(small_config(backbone=name, lora_rank=2), num_classes=2)
    for parameter in model.backbone.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    sum(one.square().sum() for one in model.backbone(torch.randn(1, 3, 64, 64))).backward()
    trained = {name: p.grad for name, p in model.backbone.named_parameters() if p.requires_grad}
    assert len(trained) >= 2 * 2 * 4
    assert [name for name, gradient in trained.items() if gradient is None or not gradient.any()] == []


def test_what_cannot_be_adapted_is_refused(small_config) -> None:
    config = small_config(**dict.fromkeys(TRANSFORMER_KEYS), backbone="test_resnet", lora_rank=4)
    with pytest.raises(UserError, match=r"model.lora_rank=4: test_resnet has no linear layers"):
        build_model(config, num_classes=2)


def test_without_peft_the_message_says_what_to_install(small_config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"model.lora_rank=4: needs peft; pip install 'rfdetr_train\[lora\]'"):
        build_model(small_config(lora_rank=4), num_classes=2)
