"""The detector's sizes."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Optional

from rfdetr_train.config.checks import MISSING, NOT_NEGATIVE, POSITIVE, SHARE, UP_TO_1000, Section
from rfdetr_train.errors import require

PUBLISHED_BACKBONE = "vit_small_patch14_dinov2"
PLAIN_TRANSFORMERS = re.compile(r"(vit|deit3?|eva|eva02|flexivit|aimv2|beit3)_")
"""How timm's names of plain vision transformers begin; every other name is taken for a pyramid."""
LEVELS = ("P3", "P4", "P5")
"""Feature levels, each of twice the stride of the one before."""
TRANSFORMER_KEYS = (
    *("encoder_width", "encoder_depth", "encoder_heads"),
    *("patch_size", "position_grid", "num_windows", "feature_blocks"),
)
"""Keys that mean something for plain vision transformers only."""
PYRAMID_CELL_PX, PYRAMID_STRIDE_PX = 16, 32
"""A pyramid's stride of P4, and its coarsest."""


@dataclass
class ModelConfig(Section, place="model"):
    """One RF-DETR detector (arXiv 2511.09554). The letters of the shapes: see `rfdetr_train/models/rfdetr.py`."""

    name: str = MISSING
    """The variant, as in `model=nano`; it names run folders and published weights."""
    resolution: Annotated[int, POSITIVE] = MISSING
    """Height of the input in pixels, and its width unless resolution_width is given; divisible by patch_size *
    num_windows, for a pyramid by 32."""
    resolution_width: Annotated[Optional[int], POSITIVE] = None
    """Width of the input in pixels where it differs from the height; null: the input is square."""
    backbone: str = PUBLISHED_BACKBONE
    """timm name of a plain vision transformer (DINOv2, DINOv3, SigLIP, EVA02, ViT, ...), whose patch size is replaced
    by patch_size, or of a network with maps at strides 8, 16 and 32, a pyramid (ResNet, ConvNeXt, Swin, ...)."""
    pretrained: bool = False
    """true: the backbone starts from timm's weights, which timm downloads; the rest starts as `weights` says."""
    input_channels: Annotated[int, POSITIVE] = 3
    """Channels of the input; training knows 3 (RGB) and 1 (its luminance)."""
    encoder_width: Annotated[Optional[int], POSITIVE] = None
    """Embedding width of a transformer; null keeps the one that timm gives."""
    encoder_depth: Annotated[Optional[int], UP_TO_1000] = None
    """Number of its blocks; null keeps timm's."""
    encoder_heads: Annotated[Optional[int], POSITIVE] = None
    """Attention heads of a block; null keeps timm's."""
    patch_size: Annotated[Optional[int], POSITIVE] = None
    """Side of its patches in pixels; null is 16."""
    position_grid: Annotated[Optional[int], POSITIVE] = None
    """Side of its learned table of positions in patches, resized to the grid of the input; null is resolution /
    patch_size."""
    num_windows: Annotated[Optional[int], POSITIVE] = None
    """Windows per side W: its blocks outside the global ones attend inside W x W windows; null is 2."""
    feature_blocks: Optional[list[int]] = None
    """Its blocks (counted from 1) whose outputs the projector joins; null is the last of each quarter of the depth: 3,
    6, 9 and 12 of 12."""
    levels: list[str] = field(default_factory=lambda: ["P4"])
    """Feature maps that queries look at, the finest first: P4 has the stride of a transformer's patches, of a pyramid
    16 pixels, P3 half of it, P5 twice as much."""
    lora_rank: Annotated[int, NOT_NEGATIVE] = 0
    """Rank of adapters (LoRA, arXiv 2106.09685) on the linear layers of the encoder's attention and MLP, which train
    while the rest of the encoder is frozen; 0 trains the encoder itself."""
    lora_alpha: Annotated[Optional[int], POSITIVE] = None
    """An adapter's output counts lora_alpha / lora_rank times; null is once."""
    lora_dropout: Annotated[float, SHARE] = 0.0
    """Dropout in front of the adapters."""
    hidden_dim: Annotated[int, POSITIVE] = 256
    """Width D of projector, queries and decoder."""
    decoder_layers: Annotated[int, UP_TO_1000] = 3
    """Number of decoder layers."""
    self_attention_heads: Annotated[int, POSITIVE] = 8
    """Heads of the self-attention among queries."""
    cross_attention_heads: Annotated[int, POSITIVE] = 16
    """Heads H of the deformable cross-attention."""
    sampling_points: Annotated[int, POSITIVE] = 2
    """Points P that each head samples on each feature level."""
    ffn_dim: Annotated[int, POSITIVE] = 2048
    """Hidden width of the decoder's feed-forward blocks."""
    num_queries: Annotated[int, POSITIVE] = 300
    """Queries Q per group, and the largest number of detections of an image."""
    group_detr: Annotated[int, UP_TO_1000] = 13
    """Groups G of queries in training (Group DETR, arXiv 2207.13085); evaluation uses the first."""

    def _check(self) -> None:
        self._check_kind_of_backbone()
        for key in ("lora_alpha", "lora_dropout"):
            value = getattr(self, key)
            require(not value or self.lora_rank > 0, f"model.{key}", value, "does nothing with lora_rank=0")
        known = [level for level in LEVELS if level in self.levels]
        ok = bool(known) and self.levels == known
        require(ok, "model.levels", self.levels, f"give some of {', '.join(LEVELS)} in this order")
        self._check_resolution()
        for key in ("self_attention_heads", "cross_attention_heads"):
            heads = getattr(self, key)
            ok = self.hidden_dim % heads == 0
            require(ok, f"model.{key}", heads, f"hidden_dim={self.hidden_dim} must divide by it")
        require(self.hidden_dim % 4 == 0, "model.hidden_dim", self.hidden_dim, "give a multiple of 4 (sine embedding)")
        blocks = self.feature_blocks
        ok = blocks is None or (bool(blocks) and blocks == sorted(set(blocks)) and blocks[0] >= 1)
        require(ok, "model.feature_blocks", blocks, "give rising block numbers, the first block being 1")

    @property
    def size_px(self) -> tuple[int, int]:
        """Height and width of the input."""
        return self.resolution, self.resolution_width or self.resolution

    @property
    def is_pyramid(self) -> bool:
        """Whether the backbone has maps at several strides, rather than one grid of patches."""
        return PLAIN_TRANSFORMERS.match(self.backbone) is None

    @property
    def stride(self) -> int:
        """Pixels that the input's sides must divide by: patch_size * num_windows, or a pyramid's coarsest stride."""
        return PYRAMID_STRIDE_PX if self.is_pyramid else self.cell_px * (self.num_windows or 1)

    @property
    def cell_px(self) -> int:
        """Stride of P4."""
        return self.patch_size or PYRAMID_CELL_PX

    def num_tokens(self, height_px: int, width_px: int) -> int:
        """Tokens of all levels together for an input whose sides divide by the stride."""
        rows, columns = height_px // self.cell_px, width_px // self.cell_px
        of_level = {"P3": 4 * rows * columns, "P4": rows * columns, "P5": ((rows + 1) // 2) * ((columns + 1) // 2)}
        return sum(of_level[level] for level in self.levels)

    def _check_kind_of_backbone(self) -> None:
        """A pyramid has no patches, blocks or windows to choose; a transformer gets those that are not given."""
        if self.is_pyramid:
            for key in TRANSFORMER_KEYS:
                value = getattr(self, key)
                remedy = f"{self.backbone} is no plain vision transformer; set null"
                require(value is None, f"model.{key}", value, remedy)
            return
        self.patch_size = 16 if self.patch_size is None else self.patch_size
        self.num_windows = 2 if self.num_windows is None else self.num_windows
        for key in TRANSFORMER_KEYS[:3]:
            value = getattr(self, key)
            ok = value is None or not self.pretrained
            require(ok, f"model.{key}", value, "timm's weights have a size of their own; set null, or pretrained=false")

    def _check_resolution(self) -> None:
        stride = f"the stride {self.stride} of {self.backbone}" if self.is_pyramid else (
            f"patch_size x num_windows = {self.stride}"
        )  # fmt: skip
        for key, side in (("resolution", self.resolution), ("resolution_width", self.size_px[1])):
            below = side // self.stride * self.stride
            nearby = " or ".join(str(r) for r in (below, below + self.stride) if r > 0)
            ok = side % self.stride == 0
            require(ok, f"model.{key}", side, f"must divide by {stride}; the nearest that do: {nearby}")
        height, width = self.size_px
        tokens = self.num_tokens(height, width)
        what = f"is more than the {tokens} tokens of {height} x {width} pixels"
        ok, remedy = self.num_queries <= tokens, "lower num_queries or raise resolution"
        require(ok, "model.num_queries", self.num_queries, f"{what}; {remedy}")
