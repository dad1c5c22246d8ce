"""The detector's sizes."""

from dataclasses import dataclass, field
from typing import Optional

from rfdetr_train.config.checks import MISSING, positive
from rfdetr_train.errors import require


@dataclass
class ModelConfig:
    """One RF-DETR detector (arXiv 2511.09554). The letters of the shapes: see `rfdetr_train/models/rfdetr.py`."""

    name: str = MISSING
    """The variant, as in `model=nano`; it names run folders and published weights."""
    resolution: int = MISSING
    """Side of the square input in pixels; divisible by patch_size * num_windows."""
    backbone: str = "vit_small_patch14_dinov2"
    """timm name of a plain vision transformer; its patch size is replaced by patch_size."""
    encoder_width: Optional[int] = None
    """Embedding width of the backbone; null keeps the one that timm gives."""
    encoder_depth: Optional[int] = None
    """Number of transformer blocks; null keeps timm's."""
    encoder_heads: Optional[int] = None
    """Attention heads of a block; null keeps timm's."""
    patch_size: int = 16
    """Side of a patch in pixels."""
    position_grid: Optional[int] = None
    """Side of the learned table of positions in patches, resized to the grid of the input; null is resolution /
    patch_size."""
    num_windows: int = 2
    """Windows per side W: the blocks outside the global ones attend inside W x W windows."""
    feature_blocks: list[int] = field(default_factory=lambda: [3, 6, 9, 12])
    """Blocks (counted from 1) whose outputs the projector joins."""
    hidden_dim: int = 256
    """Width D of projector, queries and decoder."""
    decoder_layers: int = 3
    """Number of decoder layers."""
    self_attention_heads: int = 8
    """Heads of the self-attention among queries."""
    cross_attention_heads: int = 16
    """Heads H of the deformable cross-attention."""
    sampling_points: int = 2
    """Points P that each head samples on each feature level."""
    ffn_dim: int = 2048
    """Hidden width of the decoder's feed-forward blocks."""
    num_queries: int = 300
    """Queries Q per group, and the largest number of detections of an image."""
    group_detr: int = 13
    """Groups G of queries in training (Group DETR, arXiv 2207.13085); evaluation uses the first."""

    def __post_init__(self) -> None:
        positive(
            "model",
            self,
            "resolution",
            "encoder_width",
            "encoder_depth",
            "encoder_heads",
            "patch_size",
            "position_grid",
            "num_windows",
            "hidden_dim",
            "decoder_layers",
            "self_attention_heads",
            "cross_attention_heads",
            "sampling_points",
            "ffn_dim",
            "num_queries",
            "group_detr",
        )
        self._check_resolution()
        for key in ("self_attention_heads", "cross_attention_heads"):
            heads = getattr(self, key)
            require(
                self.hidden_dim % heads == 0, f"model.{key}", heads, f"hidden_dim={self.hidden_dim} must divide by it"
            )
        require(self.hidden_dim % 4 == 0, "model.hidden_dim", self.hidden_dim, "give a multiple of 4 (sine embedding)")
        blocks = self.feature_blocks
        require(
            bool(blocks) and blocks == sorted(set(blocks)) and blocks[0] >= 1,
            "model.feature_blocks",
            blocks,
            "give rising block numbers, the first block being 1",
        )

    @property
    def stride(self) -> int:
        """Pixels that the input's sides must divide by: patch_size * num_windows."""
        return self.patch_size * self.num_windows

    def _check_resolution(self) -> None:
        below = self.resolution // self.stride * self.stride
        nearby = " or ".join(str(r) for r in (below, below + self.stride) if r > 0)
        require(
            self.resolution % self.stride == 0,
            "model.resolution",
            self.resolution,
            f"must divide by patch_size x num_windows = {self.stride}; the nearest that do: {nearby}",
        )
        tokens = (self.resolution // self.patch_size) ** 2
        require(
            self.num_queries <= tokens,
            "model.num_queries",
            self.num_queries,
            f"is more than the {tokens} tokens of resolution {self.resolution}; lower num_queries or raise resolution",
        )
