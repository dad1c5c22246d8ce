"""The decoder: queries attend to each other inside their group and to the feature map around their reference boxes.

B batch, Q queries of a group, G groups, N = G Q queries, D width, S tokens of the feature map. Sources: LW-DETR (arXiv
2406.03459), Group DETR (2207.13085), sine positions as in DAB-DETR (2201.12329).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from rfdetr_train.config import ModelConfig
from rfdetr_train.models.attention import attend
from rfdetr_train.models.deformable_attention import DeformableAttention
from rfdetr_train.models.heads import MLP
from rfdetr_train.models.padding import Padding

FEED_FORWARD_ROWS = 1300
"""Rows of a feed-forward block at a time in training: their hidden layer then stays in a processor's cache."""


class Decoder(nn.Module):
    """Post-norm layers over fixed reference boxes; one LayerNorm, shared, in front of the heads."""

    def __init__(self, config: ModelConfig, levels: int) -> None:
        super().__init__()
        width = config.hidden_dim
        self.position_head = MLP(2 * width, width, width)
        self.layers = nn.ModuleList(DecoderLayer(config, levels) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(width)
        self.recompute = False
        for parameter in self.position_head.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)

    def forward(
        self,
        queries: Tensor,
        references_cxcywh: Tensor,
        memory: Tensor,
        grids: list[tuple[int, int]],
        num_groups: int,
        padding: Padding | None = None,
    ) -> list[Tensor]:
        """Run all layers.

        Args:
            queries: (B, N, D), groups one after the other.
            references_cxcywh: (B, N, 4) float32, fractions of the picture; the same for all layers.
            memory: (B, S, D), the levels one after the other.
            grids: (h, w) of each level.
            num_groups: G; queries see only those of their group.
            padding: of the levels, where pictures are padded.

        Returns:
            The output of every layer, (B, N, D) each, normalised.
        """
        # positions count on the padded input, as the reference has it, though the boxes count on the picture
        on_input = references_cxcywh if padding is None else references_cxcywh * padding.shares[:, :1].repeat(1, 1, 2)
        positions = self.position_head(sine_embedding(on_input, queries.shape[-1] // 2))
        outputs = []
        for layer in self.layers:
            given = (queries, positions, references_cxcywh, memory, grids, num_groups, padding)
            recompute = self.recompute and self.training
            queries = checkpoint(layer, *given, use_reentrant=False) if recompute else layer(*given)
            outputs.append(self.norm(queries))
        return outputs


class DecoderLayer(nn.Module):
    """Self-attention, deformable cross-attention, feed-forward; a LayerNorm after each."""

    def __init__(self, config: ModelConfig, levels: int) -> None:
        super().__init__()
        width = config.hidden_dim
        self.self_attention = GroupedSelfAttention(width, config.self_attention_heads)
        self.norm1 = nn.LayerNorm(width)
        self.cross_attention = DeformableAttention(width, config.cross_attention_heads, levels, config.sampling_points)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, config.ffn_dim)
        self.linear2 = nn.Linear(config.ffn_dim, width)
        self.norm3 = nn.LayerNorm(width)
        nn.init.xavier_uniform_(self.linear1.weight)
        nn.init.xavier_uniform_(self.linear2.weight)

    def forward(
        self,
        queries: Tensor,
        positions: Tensor,
        references_cxcywh: Tensor,
        memory: Tensor,
        grids: list[tuple[int, int]],
        num_groups: int,
        padding: Padding | None = None,
    ) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        queries = self.norm1(queries + self.self_attention(queries, positions, num_groups))
        attended = self.cross_attention(queries + positions, references_cxcywh, memory, grids, padding)
        queries = self.norm2(queries + attended)
        return self.norm3(queries + self._feed_forward(queries))

    def _feed_forward(self, queries: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D), in training a part of the rows after the other."""
        # of three dimensions a linear layer makes a view, which ReLU in place first copies
        rows = queries.flatten(0, 1)
        by_parts = self.training and rows.device.type == "cpu"
        parts = rows.split(FEED_FORWARD_ROWS) if by_parts else [rows]
        outputs = [self.linear2(functional.relu(self.linear1(part), inplace=True)) for part in parts]
        return torch.cat(outputs).view_as(queries)


class GroupedSelfAttention(nn.Module):
    """Multi-head attention in which the groups are further batch entries: none sees another's queries."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_projection = nn.Linear(width, 3 * width)  # queries, keys and values, in this order
        self.out_projection = nn.Linear(width, width)
        for layer in (self.in_projection, self.out_projection):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, positions: Tensor, num_groups: int) -> Tensor:
        """(B, N, D) -> (B, N, D); positions enter queries and keys, not values."""
        batch, num_queries, width = x.shape
        weight_qk, weight_v = self.in_projection.weight.split([2 * width, width])
        bias_qk, bias_v = self.in_projection.bias.split([2 * width, width])
        query, key = functional.linear(x + positions, weight_qk, bias_qk).chunk(2, dim=-1)
        value = functional.linear(x, weight_v, bias_v)
        in_heads = (batch * num_groups, num_queries // num_groups, self.heads, width // self.heads)
        query, key, value = (part.reshape(in_heads).transpose(1, 2) for part in (query, key, value))
        attended = attend(query, key, value)
        return self.out_projection(attended.transpose(1, 2).reshape(batch, num_queries, width))


def sine_embedding(boxes_cxcywh: Tensor, width: int) -> Tensor:
    """Sines and cosines of each coordinate at `width` / 2 wavelengths, from 1 to nearly 10000 pictures.

    Args:
        boxes_cxcywh: (..., 4), fractions of the picture.
        width: entries per coordinate, an even number: sine and cosine in turn.

    Returns:
        (..., 4 width) in the order y, x, w, h.
    """
    pairs = torch.arange(width // 2, dtype=boxes_cxcywh.dtype, device=boxes_cxcywh.device)
    wavelengths = 10000.0 ** (2 * pairs / width)
    angles = boxes_cxcywh[..., [1, 0, 2, 3], None] * (2 * math.pi) / wavelengths
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-3)
