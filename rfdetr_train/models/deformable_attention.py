"""Deformable cross-attention (arXiv 2010.04159): each head looks at a few points around its query's reference box.

B batch, N queries, D width, H heads, L levels, P points, S tokens of all levels, h x w grid of a level.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from rfdetr_train.boxes import at_least_float32
from rfdetr_train.models.padding import Padding


class DeformableAttention(nn.Module):
    """Offsets are laid out (head, level, point, xy), attention weights (head, level, point)."""

    def __init__(self, width: int, heads: int, levels: int, points: int) -> None:
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.sampling_offsets = nn.Linear(width, heads * levels * points * 2)
        self.attention_weights = nn.Linear(width, heads * levels * points)
        self.value_projection = nn.Linear(width, width)
        self.output_projection = nn.Linear(width, width)
        self._initialise()

    def _initialise(self) -> None:
        """Every head starts in a direction of its own, point p at radius p + 1, all points equal in weight."""
        for layer in (self.value_projection, self.output_projection):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        for layer in (self.sampling_offsets, self.attention_weights):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(ring_of_offsets(self.heads, self.levels, self.points).flatten())

    def forward(
        self,
        queries: Tensor,
        references_cxcywh: Tensor,
        memory: Tensor,
        grids: list[tuple[int, int]],
        padding: Padding | None = None,
    ) -> Tensor:
        """Sample the memory around the references.

        Args:
            queries: (B, N, D), positions added.
            references_cxcywh: (B, N, 4) float32, fractions of the picture.
            memory: (B, S, D), the levels one after the other, each row by row.
            grids: (h, w) of each level.
            padding: tokens that count as zero, and where on the levels the references lie.

        Returns:
            (B, N, D).
        """
        batch, num_queries, width = queries.shape
        locations = self._sampling_locations(queries, references_cxcywh)
        value = self.value_projection(memory)
        if padding is not None:
            locations = locations * padding.shares[:, None, :, None, None]
            value = value.masked_fill(padding.tokens[..., None], 0.0)
        values = value.split([height * width_ for height, width_ in grids], dim=1)
        weights = self._softmax_weights(queries)
        first, *others = (
            (self._sample(values[level], grid, locations[:, :, level]) * weights[:, :, level]).sum(2)
            for level, grid in enumerate(grids)
        )
        heads_out = sum(others, start=first)  # (B H, D/H, N)
        return self.output_projection(heads_out.view(batch, width, num_queries).transpose(1, 2))

    # Queries come last below: so the few points of each are added as whole rows of a tensor, not within rows.

    def _sampling_locations(self, queries: Tensor, references_cxcywh: Tensor) -> Tensor:
        """(B, H, L, P, N, 2) in fractions of the picture: an offset of P reaches the edge of the reference box."""
        offsets = at_least_float32(self.sampling_offsets(queries))
        offsets = offsets.unflatten(-1, (self.heads, self.levels, self.points, 2)).permute(0, 2, 3, 4, 1, 5)
        centre, size = references_cxcywh[:, None, None, None].split(2, dim=-1)
        return centre + offsets.contiguous() / self.points * size * 0.5

    def _softmax_weights(self, queries: Tensor) -> Tensor:
        """(B H, 1, L, P, N), summing to 1 over all points of all levels."""
        logits = at_least_float32(self.attention_weights(queries)).transpose(1, 2)
        weights = logits.unflatten(1, (self.heads, -1)).softmax(dim=2)
        return weights.unflatten(2, (self.levels, self.points)).flatten(0, 1).unsqueeze(1)

    def _sample(self, value: Tensor, grid: tuple[int, int], locations: Tensor) -> Tensor:
        """One level's values (B, h w, D) at (B, H, P, N, 2) -> (B H, D/H, P, N), bilinear, zero outside."""
        maps = value.transpose(1, 2).reshape(len(value) * self.heads, -1, *grid)
        points = 2 * locations.flatten(0, 1) - 1  # grid_sample counts from -1 to 1
        return functional.grid_sample(
            at_least_float32(maps), points, mode="bilinear", padding_mode="zeros", align_corners=False
        )


def ring_of_offsets(heads: int, levels: int, points: int) -> Tensor:
    """(H, L, P, 2): head h looks towards the angle 2 pi h / H, up to the unit square; point p is p + 1 times as far."""
    angles = torch.arange(heads, dtype=torch.float32) * (2.0 * math.pi / heads)
    directions = torch.stack((angles.cos(), angles.sin()), dim=-1)
    directions = directions / directions.abs().amax(dim=-1, keepdim=True)
    radii = torch.arange(1, points + 1, dtype=torch.float32)
    return (directions[:, None, None] * radii[:, None]).expand(heads, levels, points, 2)
