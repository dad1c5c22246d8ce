from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import timm
import torch

from rfdetr_train.config import ModelConfig
from rfdetr_train.errors import UserError
from rfdetr_train.models.rfdetr import build_model
from rfdetr_train.models.timm_network import create_network


def test_an_unknown_name_is_refused_with_the_nearest_ones(small_config: Callable[..., ModelConfig]) -> None:
    with pytest.raises(UserError, match=r"model.backbone=vit_smal_patch16_dinov3: .* vit_small_patch16_dinov3"):
        create_network(small_config(backbone="vit_smal_patch16_dinov3"), pretrained=False)


def test_sizes_that_timm_refuses_are_said(small_config: Callable[..., ModelConfig]) -> None:
    with pytest.raises(UserError, match=r"model.backbone=vit_tiny_patch16_224: timm cannot build it .*divisible"):
        create_network(small_config(backbone="vit_tiny_patch16_224"), pretrained=False, embed_dim=25, num_heads=2)


def test_weights_that_cannot_be_had_are_said_with_the_remedy(small_config, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub\nand more")

    monkeypatch.setattr(timm, "create_model", no_network)
    with pytest.raises(
        UserError, match=r"timm's weights of vit_tiny_patch16_224 .*couldn't connect to the hub\); .*pretrained=false"
    ):
        create_network(small_config(backbone="vit_tiny_patch16_224"), pretrained=True)


def test_only_training_asks_timm_for_weights(small_config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of checkpoints are built from a config that says pretrained."""
    asked = []

    def create_model(name: str, pretrained: bool, **kwargs: object) -> torch.nn.Module:
        asked.append(pretrained)
        model = original(name, False, **kwargs)
        torch.nn.init.constant_(model.patch_embed.proj.weight, 7.0)
        return model

    original = timm.create_model
    monkeypatch.setattr(timm, "create_model", create_model)
    sizes = dict.fromkeys(("encoder_width", "encoder_depth", "encoder_heads"))
    config = small_config(backbone="vit_tiny_patch16_224", pretrained=True, **sizes)
    plain, pretrained = build_model(config, 2), build_model(config, 2, pretrained=True)
    assert asked == [False, True]
    assert not (plain.backbone.vit.patch_embed.proj.weight == 7.0).any()
    assert (pretrained.backbone.vit.patch_embed.proj.weight == 7.0).all()


@pytest.mark.parametrize("channels", [1, 5])
def test_the_network_takes_the_channels_of_the_config(small_config: Callable[..., ModelConfig], channels: int) -> None:
    model = build_model(small_config(input_channels=channels), num_classes=2).eval()
    assert model(torch.randn(1, channels, 64, 64))["logits"].shape == (1, 10, 3)


@pytest.mark.parametrize("name", [
    "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_small_patch16_dinov3",
    "vit_base_patch16_siglip_224", "eva02_tiny_patch14_224", "vit_tiny_patch16_224",
])  # fmt: skip
def test_timms_weights_are_fitted_to_patches_and_positions(
    small_config, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file in the place of the hub: timm's own classifier of its own size becomes our backbone."""
    small = {"embed_dim": 48, "depth": 2, "num_heads": 3}
    theirs = timm.create_model(name, **small)
    path = tmp_path / "weights.pth"
    torch.save(theirs.state_dict(), path)
    from_file = partial(timm.create_model, pretrained_cfg_overlay={"file": str(path)}, **small)
    monkeypatch.setattr(timm, "create_model", from_file)
    config = small_config(backbone=name, **dict.fromkeys(("encoder_width", "encoder_depth", "encoder_heads")))
    ours = build_model(config, 2, pretrained=True).backbone.vit
    assert ours.patch_embed.proj.weight.shape == (48, 3, 8, 8)  # of 14 or 16 pixels there
    state = theirs.state_dict()
    state = {
        key.replace("fc_norm.", "norm."): value for key, value in state.items() if not key.startswith("attn_pool.")
    }
    for key, value in ours.state_dict().items():
        if key == "pos_embed":
            assert value.shape[1] == (0 if ours.no_embed_class else ours.num_prefix_tokens) + 64
            assert value.mean().item() == pytest.approx(state[key].mean().item(), abs=2e-3)
        elif key != "patch_embed.proj.weight":
            assert torch.equal(value, state[key]), key
