"""The backbone: timm's vision transformer, most of its blocks attending inside windows.

B batch, E width of the transformer, h x w grid of patches, W windows per side, n = h w / W^2 patches of a window.
Sources: DINOv2 (arXiv 2304.07193), windows of ViTDet (2203.16527) as in RF-DETR (2511.09554).
"""

from typing import Any, TypeGuard

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from rfdetr_train.config import ModelConfig
from rfdetr_train.errors import UserError, require
from rfdetr_train.models.attention import plain_products_are_faster
from rfdetr_train.position_table import resize_positions


class Backbone(nn.Module):
    """`vit` with windowed attention and the maps after some of its blocks."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.vit: Any = plain_vision_transformer(config)  # timm types its tokens as optional
        depth = len(self.vit.blocks)
        require(
            config.feature_blocks[-1] <= depth,
            "model.feature_blocks",
            config.feature_blocks,
            f"{config.backbone} has {depth} blocks; name none beyond",
        )
        self.feature_blocks = tuple(config.feature_blocks)
        self.num_windows = config.num_windows
        # The weights were trained with this off-by-one: blocks count from 1 in feature_blocks, from 0 here. So the
        # blocks that attend globally are those *after* the feature blocks.
        self.windowed_blocks = frozenset(range(depth)) - frozenset(config.feature_blocks)

    @property
    def width(self) -> int:
        """E."""
        return self.vit.embed_dim

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images (B, 3, H, W) -> a map (B, E, h, w) after each feature block, under the final LayerNorm."""
        patches = self._embed_patches(images)
        grid = (patches.shape[1], patches.shape[2])
        tokens = self._with_class_token(cut_windows(patches, self.num_windows))
        maps = []
        fused = not plain_products_are_faster(images.device)
        for index in range(self.feature_blocks[-1]):  # blocks after the last feature block feed nothing
            self.vit.blocks[index].attn.fused_attn = fused  # timm's own switch
            tokens = self._run_block(index, tokens)
            if index + 1 in self.feature_blocks:
                patch_tokens = self.vit.norm(tokens)[:, 1:]
                maps.append(join_windows(patch_tokens, self.num_windows, grid).permute(0, 3, 1, 2))
        return maps

    def _embed_patches(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, h, w, E), positions added."""
        patches = self.vit.patch_embed.proj(images).permute(0, 2, 3, 1)
        return patches + resize_positions(self.vit.pos_embed[:, 1:], (patches.shape[1], patches.shape[2]))

    def _with_class_token(self, windows: Tensor) -> Tensor:
        """(B W^2, n, E) -> (B W^2, 1 + n, E): each window gets its own copy of the class token."""
        class_token = self.vit.cls_token + self.vit.pos_embed[:, :1]
        return torch.cat((class_token.expand(len(windows), -1, -1), windows), dim=1)

    def _run_block(self, index: int, tokens: Tensor) -> Tensor:
        """(B W^2, 1 + n, E) -> the same; a global block sees the W^2 windows of an image as one sequence."""
        block = self.vit.blocks[index]
        if index in self.windowed_blocks:
            return block(tokens)
        windows, length, width = tokens.shape
        windows_per_image = self.num_windows**2
        whole = tokens.reshape(windows // windows_per_image, windows_per_image * length, width)
        return block(whole).reshape(windows, length, width)


def plain_vision_transformer(config: ModelConfig) -> VisionTransformer:
    """timm's model `config.backbone` with the sizes of the config and new weights.

    Raises:
        UserError: timm does not know the name, or it is no vision transformer with exactly a class token and one learnt
            table of positions.
    """
    sizes: dict[str, Any] = {
        "embed_dim": config.encoder_width,
        "depth": config.encoder_depth,
        "num_heads": config.encoder_heads,
    }
    position_grid = config.position_grid or config.resolution // config.patch_size
    try:
        vit = timm.create_model(
            config.backbone,
            pretrained=False,
            img_size=position_grid * config.patch_size,  # timm's table has an entry for each patch of this
            patch_size=config.patch_size,
            num_classes=0,
            init_values=1.0,
            **{name: size for name, size in sizes.items() if size is not None},
        )
    except (RuntimeError, TypeError, AssertionError) as error:
        raise UserError(
            f"model.backbone={config.backbone}: timm cannot build it ({error}); choose a plain vision transformer"
        ) from error
    if not _is_plain(vit):
        raise UserError(f"model.backbone={config.backbone}: is no plain vision transformer; choose a vit_* of timm")
    _initialise(vit)
    return vit


def _is_plain(vit: nn.Module) -> TypeGuard[VisionTransformer]:
    return (
        type(vit) is VisionTransformer
        and vit.num_prefix_tokens == 1
        and vit.has_class_token
        and vit.pos_embed is not None
        and not vit.no_embed_class
        and isinstance(vit.norm_pre, nn.Identity)
        and isinstance(vit.norm, nn.LayerNorm)
    )


def _initialise(vit: Any) -> None:
    """DINOv2's initial values: timm leaves the patch convolution and the class token at others."""
    for module in vit.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.trunc_normal_(vit.cls_token, std=0.02)
    nn.init.trunc_normal_(vit.pos_embed, std=0.02)


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
