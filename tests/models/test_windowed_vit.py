from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from timm.layers import Mlp
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rfdetr_train.errors import UserError
from rfdetr_train.models.windowed_vit import LeanMlp, WindowedViT, cut_windows, join_windows


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
    own = WindowedViT(replace(toy_config, position_grid=5))
    assert own.vit.pos_embed.shape == (1, 1 + 25, 48)
    assert WindowedViT(toy_config).vit.pos_embed.shape == (1, 1 + 64, 48)
    maps = own(torch.randn(1, 3, 128, 128))
    assert {tuple(one.shape) for one in maps} == {(1, 48, 8, 8)}


def test_the_blocks_after_the_feature_blocks_attend_globally(toy_config):
    assert WindowedViT(toy_config).windowed_blocks == set(range(12)) - {3, 6, 9}
    older = replace(toy_config, feature_blocks=[2, 5, 8, 11])
    assert WindowedViT(older).windowed_blocks == {0, 1, 3, 4, 6, 7, 9, 10}


def test_windows_do_not_see_each_other_before_the_first_global_block(toy_config):
    local = WindowedViT(replace(toy_config, encoder_depth=2, feature_blocks=[2]))
    images = torch.randn(1, 3, 128, 128)
    changed = images.clone()
    changed[..., 64:] += 1.0  # the two windows on the right
    before, after = local(images)[0], local(changed)[0]
    assert torch.equal(before[..., :4], after[..., :4])
    assert not torch.isclose(before[..., 4:], after[..., 4:]).any()

    joined = WindowedViT(replace(toy_config, encoder_depth=2, feature_blocks=[1, 2]))  # block 1 of {0, 1} is global
    assert not torch.equal(joined(images)[1][..., :4], joined(changed)[1][..., :4])


def test_blocks_after_the_last_feature_block_do_not_run(toy_config):
    backbone = WindowedViT(replace(toy_config, feature_blocks=[1, 2]))
    torch.stack(backbone(torch.randn(1, 3, 128, 128))).sum().backward()
    reached = {name for name, parameter in backbone.vit.blocks.named_parameters() if parameter.grad is not None}
    assert {name.split(".")[0] for name in reached} == {"0", "1"}


def test_initial_values(toy_config):
    torch.manual_seed(0)
    vit = WindowedViT(replace(toy_config, encoder_width=192)).vit
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
    "name", ["deit_base_distilled_patch16_224", "vit_relpos_small_patch16_224", "vit_tiny_r_s16_p8_224"]
)
def test_a_transformer_that_is_not_plain_is_refused_with_the_remedy(toy_config, name):
    with pytest.raises(UserError, match=f"model.backbone={name}: is no plain .* such as vit_small_patch14_dinov2"):
        WindowedViT(replace(toy_config, backbone=name))


def test_feature_blocks_are_the_ends_of_the_quarters_unless_given(toy_config):
    blocks = {depth: WindowedViT(replace(toy_config, encoder_depth=depth)).feature_blocks for depth in (12, 8, 6, 2)}
    assert blocks == {12: (3, 6, 9, 12), 8: (2, 4, 6, 8), 6: (2, 3, 5, 6), 2: (1, 2)}


def test_a_table_of_positions_is_refused_where_there_is_none(toy_config):
    with pytest.raises(UserError, match=r"model.position_grid=5: vit_small_patch16_dinov3 has no table"):
        WindowedViT(replace(toy_config, backbone="vit_small_patch16_dinov3", position_grid=5))


FAMILIES = {
    "vit_small_patch14_dinov2": "class token with a position",
    "vit_small_patch14_reg4_dinov2": "class token and registers without",
    "vit_small_patch16_dinov3": "rotary positions alone, half layout",
    "vit_base_patch16_siglip_224": "no prefix; pools by attention",
    "eva02_tiny_patch14_224": "both kinds of positions, last norm behind the pooling",
    "vit_base_patch16_clip_224": "norm before the blocks",
    "vit_small_patch16_rope_mixed_ape_224": "rotary positions of each block and head",
    "vit_pe_core_tiny_patch16_384": "rotary positions counted by column, from 1",
}


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_without_windows_it_computes_what_timm_computes(toy_config, name):
    """Also on a grid of another size and shape than the table of positions."""
    config = replace(toy_config, backbone=name, encoder_depth=3, feature_blocks=[1, 3], num_windows=1)
    ours = WindowedViT(config).eval()
    images = torch.randn(2, 3, 96, 160)
    expected = ours.vit.forward_intermediates(images, indices=[0, 2], norm=True, intermediates_only=True)
    for actual, wanted in zip(ours(images), expected, strict=True):
        torch.testing.assert_close(actual, wanted)


@torch.no_grad()
@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_small_patch16_rope_mixed_ape_224"])
@pytest.mark.parametrize("feature_blocks", [[2], [1, 2]])  # the second block windowed, or global
def test_rotary_positions_are_those_of_the_whole_picture(toy_config, name, feature_blocks):
    """Attention does not ask for the order of its tokens: prefixes first, patches with their own rows of the table."""
    config = replace(toy_config, backbone=name, resolution=96, encoder_depth=2, feature_blocks=feature_blocks)
    ours = WindowedViT(config).eval()
    images, vit = torch.randn(1, 3, 96, 96), ours.vit
    tokens, tables = vit._pos_embed(vit.patch_embed(images))
    num_prefix = vit.num_prefix_tokens
    rows = torch.arange(36).view(2, 3, 2, 3).transpose(1, 2).reshape(4, 9)  # of each window
    windows = [torch.cat((tokens[:, :num_prefix], tokens[:, num_prefix:][:, window]), dim=1) for window in rows]
    for index, block in enumerate(vit.blocks):
        table = tables[index] if tables.ndim == 4 else tables
        if index in ours.windowed_blocks:
            windows = [block(w, rope=table[..., window, :]) for w, window in zip(windows, rows, strict=True)]
            continue
        prefixes, patches = [w[:, :num_prefix] for w in windows], [w[:, num_prefix:] for w in windows]
        block.attn.num_prefix_tokens = 4 * num_prefix
        whole = block(torch.cat(prefixes + patches, dim=1), rope=table[..., rows.flatten(), :])
        block.attn.num_prefix_tokens = num_prefix
        prefixes, patches = whole[:, : 4 * num_prefix].chunk(4, dim=1), whole[:, 4 * num_prefix :].chunk(4, dim=1)
        windows = [torch.cat(parts, dim=1) for parts in zip(prefixes, patches, strict=True)]
    expected = torch.empty(36, 48)
    expected[rows.flatten()] = torch.cat([vit.norm(w)[0, num_prefix:] for w in windows])
    torch.testing.assert_close(ours(images)[-1][0].flatten(1).T, expected)


def test_feature_blocks_beyond_the_depth_are_refused(toy_config):
    with pytest.raises(UserError, match=r"model.feature_blocks=\[3, 13\].*has 12 blocks"):
        WindowedViT(replace(toy_config, feature_blocks=[3, 13]))


def test_the_perceptron_keeps_less_and_computes_no_product_twice():
    torch.manual_seed(0)
    usual, lean = Mlp(8, 32), Mlp(8, 32)
    lean.load_state_dict(usual.state_dict())
    lean.__class__ = LeanMlp
    kept, flops, gradients = [], [], []
    for mlp in (usual, lean):
        tokens = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        sizes: dict[int, int] = {}

        def keep(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.numel()
            return tensor

        with FlopCounterMode(display=False) as counter:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                outputs = mlp(tokens)
            outputs.square().sum().backward()
        kept.append(sum(sizes.values()))
        flops.append(counter.get_total_flops())
        gradients.append([tokens.grad, *(parameter.grad for parameter in mlp.parameters())])
    assert kept[0] - kept[1] >= 5 * 32
    assert flops[0] == flops[1] == 3 * 2 * 5 * 8 * 32 * 2
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_a_copy_of_the_encoder_has_perceptrons_of_its_own(small_config):
    backbone = WindowedViT(small_config())
    copied = deepcopy(backbone)
    mlps = [(a.mlp, b.mlp) for a, b in zip(backbone.vit.blocks, copied.vit.blocks, strict=True)]
    assert all(type(a) is type(b) is LeanMlp and a.fc2 is not b.fc2 for a, b in mlps)
