from dataclasses import replace

import pytest
import torch
from torch import nn

from rfdetr_train.errors import UserError
from rfdetr_train.models.backbone import Backbone, cut_windows, join_windows


def test_windows_are_cut_row_by_row_and_joined_again():
    patches = torch.arange(2 * 4 * 6).view(2, 4, 6, 1)
    windows = cut_windows(patches, 2)
    assert windows.shape == (8, 6, 1)
    assert windows[0].flatten().tolist() == [0, 1, 2, 6, 7, 8]  # upper left
    assert windows[1].flatten().tolist() == [3, 4, 5, 9, 10, 11]  # upper right
    assert windows[2].flatten().tolist() == [12, 13, 14, 18, 19, 20]  # lower left
    assert windows[4, 0].item() == 24  # the second picture
    assert torch.equal(join_windows(windows, 2, (4, 6)), patches)


def test_the_table_of_positions_may_have_a_grid_of_its_own(toy_config):
    own = Backbone(replace(toy_config, position_grid=5))
    assert own.vit.pos_embed.shape == (1, 1 + 25, 48)
    assert Backbone(toy_config).vit.pos_embed.shape == (1, 1 + 64, 48)
    maps = own(torch.randn(1, 3, 128, 128))
    assert {tuple(one.shape) for one in maps} == {(1, 48, 8, 8)}


def test_the_blocks_after_the_feature_blocks_attend_globally(toy_config):
    assert Backbone(toy_config).windowed_blocks == set(range(12)) - {3, 6, 9}
    older = replace(toy_config, feature_blocks=[2, 5, 8, 11])
    assert Backbone(older).windowed_blocks == {0, 1, 3, 4, 6, 7, 9, 10}


def test_windows_do_not_see_each_other_before_the_first_global_block(toy_config):
    local = Backbone(replace(toy_config, encoder_depth=2, feature_blocks=[2]))
    images = torch.randn(1, 3, 128, 128)
    changed = images.clone()
    changed[..., 64:] += 1.0  # the two windows on the right
    before, after = local(images)[0], local(changed)[0]
    assert torch.equal(before[..., :4], after[..., :4])
    assert not torch.isclose(before[..., 4:], after[..., 4:]).any()

    joined = Backbone(replace(toy_config, encoder_depth=2, feature_blocks=[1, 2]))  # block 1 of {0, 1} is global
    assert not torch.equal(joined(images)[1][..., :4], joined(changed)[1][..., :4])


def test_blocks_after_the_last_feature_block_do_not_run(toy_config):
    backbone = Backbone(replace(toy_config, feature_blocks=[1, 2]))
    torch.stack(backbone(torch.randn(1, 3, 128, 128))).sum().backward()
    reached = {name for name, parameter in backbone.vit.blocks.named_parameters() if parameter.grad is not None}
    assert {name.split(".")[0] for name in reached} == {"0", "1"}


def test_initial_values(toy_config):
    torch.manual_seed(0)
    vit = Backbone(replace(toy_config, encoder_width=192)).vit
    block = vit.blocks[5]
    for values in (
        vit.patch_embed.proj.weight,
        vit.pos_embed,
        vit.cls_token,
        block.attn.qkv.weight,
        block.mlp.fc2.weight,
    ):
        assert values.std().item() == pytest.approx(0.02, rel=0.15)
    for module in vit.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            assert not module.bias.any()
    assert (block.ls1.gamma == 1).all()
    assert (block.ls2.gamma == 1).all()
    assert block.norm1.eps == vit.norm.eps == 1e-6


@pytest.mark.parametrize(
    "name", ["no_such_model", "resnet18", "vit_small_patch14_reg4_dinov2", "deit3_small_patch16_224"]
)
def test_a_backbone_that_is_no_plain_vision_transformer_is_refused(toy_config, name):
    with pytest.raises(UserError, match=f"model.backbone={name}"):
        Backbone(replace(toy_config, backbone=name))


def test_feature_blocks_beyond_the_depth_are_refused(toy_config):
    with pytest.raises(UserError, match=r"model.feature_blocks=\[3, 13\].*has 12 blocks"):
        Backbone(replace(toy_config, feature_blocks=[3, 13]))
