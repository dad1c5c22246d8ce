import json
from pathlib import Path

import pytest
import torch

from rfdetr_train.checkpoint.reference_weights import IGNORED, our_name, reference_names
from rfdetr_train.config import ModelConfig
from rfdetr_train.models.rfdetr import RFDETR, build_model
from rfdetr_train.roles import ParameterRole

VARIANTS = {
    "nano": {"resolution": 384, "decoder_layers": 2},
    "small": {"resolution": 512, "decoder_layers": 3},
    "medium": {"resolution": 576, "decoder_layers": 4},
    "large": {"resolution": 704, "decoder_layers": 4},
}
MASK_TOKEN_SIZE = 384
LR, ENCODER_LR, WEIGHT_DECAY, LAYER_DECAY, COMPONENT_DECAY = 1e-4, 1.5e-4, 1e-4, 0.8, 0.7


@pytest.fixture(scope="module")
def reference_groups() -> dict:
    return json.loads((Path(__file__).parents[1] / "fixtures/reference_param_groups.json").read_text())


def model_of(variant: str) -> RFDETR:
    with torch.device("meta"):  # names and shapes only
        return build_model(ModelConfig(name=variant, **VARIANTS[variant]), num_classes=90)


def hyperparameters(role: ParameterRole) -> tuple[float, float]:
    """The recipe, from nothing but the role."""
    if role.part == "encoder":
        decays = role.kind in ("weight", "scale")
        lr = ENCODER_LR * LAYER_DECAY**role.layers_above * COMPONENT_DECAY**2
        return lr, WEIGHT_DECAY if decays else 0.0
    return (LR * COMPONENT_DECAY if role.part == "decoder" else LR), WEIGHT_DECAY


@pytest.mark.parametrize("variant", ["nano", "small", "medium"])
def test_roles_give_every_parameter_the_hyperparameters_of_the_reference(variant, reference_groups):
    model = model_of(variant)
    roles = model.parameter_roles()
    assert list(roles) == [name for name, _ in model.named_parameters()]

    rows = [row for row in reference_groups[variant]["parameters"] if row["name"] not in IGNORED]
    for row in rows:
        assert hyperparameters(roles[our_name(row["name"]).name]) == (row["lr"], row["weight_decay"]), row["name"]
    assert {row["name"] for row in rows} == {name for ours in roles for name in reference_names(ours)}


@pytest.mark.parametrize("variant", ["nano", "small", "medium"])
def test_sizes_are_those_of_the_reference(variant, reference_groups):
    model, expected = model_of(variant), reference_groups[variant]
    assert sum(p.numel() for p in model.parameters()) + MASK_TOKEN_SIZE == expected["total_parameters"]
    joined = 12 * 2 * 2  # 12 blocks' weights and biases: three tensors became one
    assert len(list(model.parameters())) == expected["trainable_tensors"] - joined - 1

    shapes = {row["name"]: tuple(row["shape"]) for row in expected["parameters"]}
    for name, parameter in model.named_parameters():
        names = reference_names(name)
        length, *rest = parameter.shape
        assert {shapes[part] for part in names} == {(length // len(names), *rest)}


def test_published_numbers():
    counts = {variant: sum(p.numel() for p in model_of(variant).parameters()) for variant in VARIANTS}
    assert counts["nano"] + MASK_TOKEN_SIZE == 30_467_298
    assert counts["large"] + MASK_TOKEN_SIZE == 33_933_218
    assert len(list(model_of("nano").parameters())) == 416


def test_base_differs_from_small_in_its_patches_and_positions(reference_groups):
    """Patches of 14 instead of 16 pixels, and 37 x 37 positions, as trained at 518 pixels, instead of 32 x 32."""
    sizes = {"resolution": 560, "decoder_layers": 3, "patch_size": 14, "num_windows": 4, "position_grid": 37}
    with torch.device("meta"):
        base = build_model(ModelConfig(name="base", feature_blocks=[2, 5, 8, 11], **sizes), num_classes=90)
    assert base.backbone.vit.pos_embed.shape == (1, 1 + 37**2, 384)
    count = sum(p.numel() for p in base.parameters()) + MASK_TOKEN_SIZE
    patches, positions = 3 * (14**2 - 16**2) * 384, (37**2 - 32**2) * 384
    assert count == reference_groups["small"]["total_parameters"] + patches + positions


def test_hidden_matrices():
    roles = model_of("nano").parameter_roles()
    matrices = {name for name, role in roles.items() if role.hidden_matrix}
    assert {name.split(".")[0] for name in matrices} == {"backbone", "decoder", "two_stage"}
    assert "backbone.vit.blocks.3.attn.qkv.weight" in matrices
    assert "decoder.position_head.layers.0.weight" in matrices
    assert {name for name in matrices if name.startswith("two_stage")} == {
        f"two_stage.groups.{group}.project.weight" for group in range(13)
    }
    for name in ("patch_embed.proj.weight", "pos_embed", "norm.weight", "blocks.0.attn.qkv.bias"):
        assert f"backbone.vit.{name}" not in matrices


def test_roles_of_the_encoder_follow_its_last_feature_block(toy_config):
    toy_config.feature_blocks = [2, 5, 8, 11]
    roles = build_model(toy_config, 5).parameter_roles()
    assert roles["backbone.vit.cls_token"] == ParameterRole("encoder", "embedding", 13)
    assert roles["backbone.vit.patch_embed.proj.bias"] == ParameterRole("encoder", "embedding", 13)
    assert roles["backbone.vit.blocks.0.attn.qkv.bias"] == ParameterRole("encoder", "bias", 12)
    assert roles["backbone.vit.blocks.11.norm2.bias"] == ParameterRole("encoder", "norm", 1)
    assert roles["backbone.vit.blocks.11.ls1.gamma"] == ParameterRole("encoder", "scale", 1)
    assert roles["backbone.vit.norm.weight"] == ParameterRole("encoder", "norm", 0)


def test_parts_and_kinds_outside_the_encoder(toy_model):
    roles = toy_model.parameter_roles()
    assert roles["projector.c2f.split.norm.bias"] == ParameterRole("projector", "norm")
    assert roles["projector.c2f.join.conv.weight"] == ParameterRole("projector", "weight")
    assert roles["decoder.position_head.layers.0.bias"] == ParameterRole("decoder", "bias")
    assert roles["decoder.norm.weight"] == ParameterRole("decoder", "norm")
    assert roles["two_stage.groups.1.norm.weight"] == ParameterRole("head", "norm")
    assert roles["query_feat.weight"] == ParameterRole("head", "weight")
    assert roles["class_embed.bias"] == ParameterRole("head", "bias")
