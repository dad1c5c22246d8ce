"""A plain vision transformer of timm, most of its blocks attending inside windows.

B batch, E width of the transformer, h x w grid of patches, W windows per side, n = h w / W^2 patches of a window, P
prefix tokens (class and registers). Sources: DINOv2 (arXiv 2304.07193), windows of ViTDet (2203.16527) as in RF-DETR
(2511.09554), rotary positions as in EVA02 (2303.11331) and DINOv3 (2508.10104).
"""

from typing import Any, NamedTuple

import torch
from timm.layers import Mlp, PatchEmbed
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rfdetr_train.config import ModelConfig
from rfdetr_train.errors import UserError, require
from rfdetr_train.models.attention import plain_products_are_faster
from rfdetr_train.models.timm_network import create_network
from rfdetr_train.position_table import resize_positions


class Rotations(NamedTuple):
    """Sines and cosines by which a block turns its queries and keys; K heads, or 1 for all of them."""

    windowed: Tensor
    """(B W^2, K, n, 2 C), for a block that attends inside windows."""
    whole: Tensor
    """(K, W^2 (P + n) - P, 2 C), for one that attends to all windows of an image; the first P are not turned."""


class LeanMlp(Mlp):
    """timm's perceptron, which on a CPU keeps for the backward pass what enters its activation alone.

    What leaves it, as large again, takes less time to compute anew than the memory would to be had.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., E) -> (..., E)."""
        hidden = self.fc1(x)
        if x.device.type != "cpu" or not torch.is_grad_enabled():
            return self._second_half(hidden)
        # torch stops computing where the last tensor has been found that the backward pass reads: before the product
        return checkpoint(self._second_half, hidden, use_reentrant=False, preserve_rng_state=self.drop1.p > 0)

    def _second_half(self, hidden: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.norm(self.drop1(self.act(hidden)))))


class WindowedViT(nn.Module):
    """`vit` with windowed attention and the maps after some of its blocks."""

    def __init__(self, config: ModelConfig, pretrained: bool = False) -> None:
        super().__init__()
        assert config.num_windows is not None
        self.vit: Any = plain_vision_transformer(config, pretrained)  # timm types its tokens as optional
        depth = len(self.vit.blocks)
        blocks = config.feature_blocks or [-(-depth * quarter // 4) for quarter in (1, 2, 3, 4)]
        require(
            blocks[-1] <= depth,
            "model.feature_blocks",
            blocks,
            f"{config.backbone} has {depth} blocks; name none beyond",
        )
        self.feature_blocks = tuple(dict.fromkeys(blocks))
        self.channels = [self.vit.embed_dim] * len(self.feature_blocks)
        self.num_windows = config.num_windows
        # The weights were trained with this off-by-one: blocks count from 1 in feature_blocks, from 0 here. So the
        # blocks that attend globally are those *after* the feature blocks.
        self.windowed_blocks = frozenset(range(depth)) - frozenset(self.feature_blocks)
        self.recompute = False
        for block in self.vit.blocks:
            if type(block.mlp) is Mlp:
                block.mlp.__class__ = LeanMlp  # the same parameters under the same names
        self.attentions: list[Any] = [module for module in self.vit.modules() if hasattr(module, "fused_attn")]

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images (B, channels, H, W) -> a map (B, E, h, w) after each feature block, under the final LayerNorm."""
        patches = self._embed_patches(images)
        grid = (patches.shape[1], patches.shape[2])
        tokens = self._with_prefix(cut_windows(patches, self.num_windows))
        rotations = self._rotations(grid, len(images))
        maps = []
        fused = not plain_products_are_faster(images.device)
        for attention in self.attentions:
            attention.fused_attn = fused  # timm's own switch
        for index in range(self.feature_blocks[-1]):  # blocks after the last feature block feed nothing
            if self.recompute and self.training:
                tokens = checkpoint(self._run_block, index, tokens, rotations, use_reentrant=False)
            else:
                tokens = self._run_block(index, tokens, rotations)
            if index + 1 in self.feature_blocks:
                patch_tokens = self.vit.norm(tokens)[:, self.vit.num_prefix_tokens :]
                maps.append(join_windows(patch_tokens, self.num_windows, grid).permute(0, 3, 1, 2))
        return maps

    def layers_above(self) -> dict[str, int]:
        """By parameter: L - i in block i (from 0) with L = last feature block + 1, L + 1 before them, 0 in the norm."""
        layers = self.feature_blocks[-1] + 1
        return {name: _layers_above(name.split("."), layers) for name, _ in self.named_parameters()}

    def _embed_patches(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, h, w, E), positions added."""
        patches = self.vit.patch_embed(images)
        if self.vit.pos_embed is None:
            return patches
        _, table = self._positions()
        return patches + resize_positions(table, (patches.shape[1], patches.shape[2]))

    def _positions(self) -> tuple[Tensor, Tensor]:
        """The table's entries for the prefix, which may be none, and for the patches."""
        table = self.vit.pos_embed
        return table.split([table.shape[1] - self.vit.patch_embed.num_patches, self.vit.patch_embed.num_patches], dim=1)

    def _with_prefix(self, windows: Tensor) -> Tensor:
        """(B W^2, n, E) -> (B W^2, P + n, E): each window gets its own copies of class and register tokens."""
        tokens = [token for token in (self.vit.cls_token, self.vit.reg_token) if token is not None]
        if tokens:
            prefix = torch.cat(tokens, dim=1)
            if self.vit.pos_embed is not None and not self.vit.no_embed_class:
                prefix = prefix + self._positions()[0]
            windows = torch.cat((prefix.expand(len(windows), -1, -1), windows), dim=1)
        return self.vit.norm_pre(windows)

    def _rotations(self, grid: tuple[int, int], batch: int) -> list[Rotations] | None:
        """Of each block, or None for a transformer without rotary positions."""
        rope = getattr(self.vit, "rope", None)
        if rope is None:
            return None
        tables = rope.get_embed(grid)  # one for all blocks, or one for each and each of its heads
        tables = tables if tables.ndim == 4 else tables.expand(1, 1, -1, -1)
        each = [window_rotations(table, grid, self.num_windows, self.vit.num_prefix_tokens, batch) for table in tables]
        return each if len(each) > 1 else each * len(self.vit.blocks)

    def _run_block(self, index: int, tokens: Tensor, rotations: list[Rotations] | None) -> Tensor:
        """(B W^2, P + n, E) -> the same; a global block sees the W^2 windows of an image as one sequence."""
        block = self.vit.blocks[index]
        windowed = index in self.windowed_blocks
        rope = {} if rotations is None else {"rope": rotations[index][0 if windowed else 1]}
        if windowed:
            return block(tokens, **rope)
        windows, length, width = tokens.shape
        windows_per_image = self.num_windows**2
        whole = tokens.reshape(windows // windows_per_image, windows_per_image * length, width)
        return block(whole, **rope).reshape(windows, length, width)


def plain_vision_transformer(config: ModelConfig, pretrained: bool) -> VisionTransformer | Eva:
    """timm's model `config.backbone` with the sizes of the config and, unless `pretrained`, new weights.

    Raises:
        UserError: timm cannot build it, or it is another kind of transformer.
    """
    assert config.patch_size is not None
    sizes: dict[str, Any] = {
        "embed_dim": config.encoder_width,
        "depth": config.encoder_depth,
        "num_heads": config.encoder_heads,
    }
    position_grid = config.position_grid or config.resolution // config.patch_size
    other_kind = UserError(
        f"model.backbone={config.backbone}: is no plain vision transformer whose attention can be cut into windows; "
        "choose another, such as vit_small_patch14_dinov2, vit_small_patch16_dinov3 or vit_base_patch16_siglip_224"
    )
    try:
        vit = create_network(
            config,
            pretrained,
            img_size=position_grid * config.patch_size,  # timm's table has an entry for each patch of this
            patch_size=config.patch_size,
            dynamic_img_size=True,
            **{name: size for name, size in sizes.items() if size is not None},
        )
    except TypeError as error:
        raise other_kind from error
    if type(vit) not in (VisionTransformer, Eva) or type(vit.patch_embed) is not PatchEmbed:
        raise other_kind
    table = config.position_grid is None or vit.pos_embed is not None
    require(
        table, "model.position_grid", config.position_grid, f"{config.backbone} has no table of positions; set null"
    )
    vit.reset_classifier(0, "")  # some pool by attention
    if isinstance(vit.norm, nn.Identity):  # others have their last norm behind the pooling
        vit.norm, vit.fc_norm = vit.fc_norm, nn.Identity()
    if not pretrained:
        _initialise(vit)
    return vit


def _initialise(vit: nn.Module) -> None:
    """DINOv2's initial values, for every family: a transformer from nothing wants LayerScales that let blocks act."""
    for module in vit.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, parameter in vit.named_parameters():
        leaf = name.rpartition(".")[2]
        if leaf in ("cls_token", "reg_token", "pos_embed"):
            nn.init.trunc_normal_(parameter, std=0.02)
        elif leaf.startswith("gamma"):
            nn.init.ones_(parameter)


def _layers_above(name: list[str], layers: int) -> int:
    if "blocks" in name:
        return max(layers - int(name[name.index("blocks") + 1]), 1)  # of blocks that do not run, all but the first
    return 0 if name[1] == "norm" else layers + 1


def window_rotations(table: Tensor, grid: tuple[int, int], num_windows: int, num_prefix: int, batch: int) -> Rotations:
    """Bring a rotary table (K, h w, 2 C) into the order of windows: every patch keeps its place in the whole picture.

    A window's copies of the P prefix tokens are turned by nothing: sine 0, cosine 1.
    """
    heads, _, width = table.shape
    windows = cut_windows(table.view(heads, *grid, width), num_windows)
    windows = windows.unflatten(0, (heads, num_windows**2)).transpose(0, 1)  # (W^2, K, n, 2 C)
    still = torch.cat((table.new_zeros(width // 2), table.new_ones(width // 2)))
    prefixes = still.expand(*windows.shape[:2], num_prefix, width)
    whole = torch.cat((prefixes, windows), dim=2).transpose(0, 1).flatten(1, 2)
    return Rotations(windows.repeat(batch, 1, 1, 1), whole[:, num_prefix:])


def cut_windows(patches: Tensor, num_windows: int) -> Tensor:
    """(B, h, w, E) -> (B W^2, n, E): windows row by row, the patches of a window row by row."""
    batch, height, width, channels = patches.shape
    rows, columns = height // num_windows, width // num_windows
    windows = patches.view(batch, num_windows, rows, num_windows, columns, channels).transpose(2, 3)
    return windows.reshape(batch * num_windows**2, rows * columns, channels)


def join_windows(windows: Tensor, num_windows: int, grid: tuple[int, int]) -> Tensor:
    """(B W^2, n, E) -> (B, h, w, E), the inverse of `cut_windows`."""
    rows, columns = grid[0] // num_windows, grid[1] // num_windows
    patches = windows.reshape(-1, num_windows, num_windows, rows, columns, windows.shape[-1]).transpose(2, 3)
    return patches.reshape(-1, *grid, windows.shape[-1])
