"""Two-stage query selection: the most promising tokens of the feature map become the decoder's reference boxes.

B batch, S tokens of all levels, K picked tokens, D width, C class logits, G groups. Sources: Deformable DETR (arXiv
2010.04159), one selection per group as in LW-DETR (2406.03459).
"""

from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rfdetr_train.boxes import apply_deltas
from rfdetr_train.models.heads import MLP
from rfdetr_train.models.padding import Padding

ANCHOR_SIZE = 0.05  # of the finest level, in fractions of the picture; doubled from level to level
ANCHOR_MARGIN = 0.01  # an anchor with a coordinate nearer than this to 0 or 1 is invalid


class Selection(NamedTuple):
    """The picked tokens' predictions, groups one after the other."""

    logits: Tensor
    """(B, G K, C)."""
    boxes_cxcywh: Tensor
    """(B, G K, 4), fractions of the picture."""


class TwoStage(nn.Module):
    """One `GroupSelector` per group, all looking at the same tokens."""

    def __init__(self, width: int, num_groups: int, class_embed: nn.Linear, box_embed: MLP) -> None:
        super().__init__()
        self.groups = nn.ModuleList(GroupSelector(width, class_embed, box_embed) for _ in range(num_groups))

    def forward(
        self,
        memory: Tensor,
        grids: list[tuple[int, int]],
        num_picks: int,
        num_groups: int,
        padding: Padding | None = None,
    ) -> Selection:
        """Pick `num_picks` tokens in each of the first `num_groups` groups.

        Args:
            memory: (B, S, D), the levels one after the other, each row by row.
            grids: (h, w) of each level.
            padding: of the levels; padded tokens are as invalid as those at the border.
        """
        anchors_cxcywh, valid = make_anchors(grids, memory.device, padding)
        candidates = memory.masked_fill(~valid[..., None], 0.0)
        picks = [selector(candidates, anchors_cxcywh, num_picks) for selector in self.groups[:num_groups]]
        return Selection(*(torch.cat(parts, dim=1) for parts in zip(*picks, strict=True)))


class GroupSelector(nn.Module):
    """Ranks the tokens by their best class logit; its heads start as copies of the detector's."""

    def __init__(self, width: int, class_embed: nn.Linear, box_embed: MLP) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.class_embed = deepcopy(class_embed)
        self.box_embed = deepcopy(box_embed)
        nn.init.xavier_uniform_(self.project.weight)

    def forward(self, memory: Tensor, anchors_cxcywh: Tensor, num_picks: int) -> Selection:
        """(B, S, D) and (S, 4) or (B, S, 4) -> K picks, best first."""
        picks = self._rank(memory).topk(num_picks, dim=1).indices
        # Only the picked tokens get a gradient, so only they are computed with one.
        picked = memory.gather(1, picks.unsqueeze(-1).expand(-1, -1, memory.shape[-1]))
        embedded = self.norm(self.project(picked))
        anchors = anchors_cxcywh.expand(len(memory), -1, -1).gather(1, picks.unsqueeze(-1).expand(-1, -1, 4))
        boxes_cxcywh = apply_deltas(self.box_embed(embedded), anchors)
        return Selection(self.class_embed(embedded), boxes_cxcywh)

    @torch.no_grad()
    def _rank(self, memory: Tensor) -> Tensor:
        """(B, S, D) -> (B, S): the largest class logit of each token."""
        embedded = self.norm(_detached_linear(self.project, memory))
        return _detached_linear(self.class_embed, embedded).amax(dim=-1)


def _detached_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """`layer(x)`. Detached, because autocast would keep its copy of a weight, made without gradient, for later use."""
    return functional.linear(x, layer.weight.detach(), layer.bias.detach())


def make_anchors(
    grids: list[tuple[int, int]], device: torch.device, padding: Padding | None = None
) -> tuple[Tensor, Tensor]:
    """One anchor per token: the centre of its cell, with the size of its level.

    Returns:
        cxcywh (S, 4) in float32, fractions of the picture, 0 where invalid; and which are valid, (S,) bool. With
        `padding` both are of each picture: (B, S, 4) and (B, S).
    """
    anchors = torch.cat([_level_anchors(grid, level, device, padding) for level, grid in enumerate(grids)], dim=-2)
    valid = ((anchors > ANCHOR_MARGIN) & (anchors < 1 - ANCHOR_MARGIN)).all(dim=-1)
    if padding is not None:
        valid = valid & ~padding.tokens
    return anchors.masked_fill(~valid[..., None], 0.0), valid


def _level_anchors(grid: tuple[int, int], level: int, device: torch.device, padding: Padding | None) -> Tensor:
    """(h w, 4) cxcywh, or (B, h w, 4) where pictures are padded."""
    height, width = grid
    covered = (width, height) if padding is None else padding.picture_tokens[:, level].split(1, dim=1)
    centre_x = (torch.arange(width, dtype=torch.float32, device=device) + 0.5) / covered[0]
    centre_y = (torch.arange(height, dtype=torch.float32, device=device) + 0.5) / covered[1]
    x, y = torch.broadcast_tensors(centre_x[..., None, :], centre_y[..., :, None])
    size = torch.full_like(x, ANCHOR_SIZE * 2.0**level)
    return torch.stack((x, y, size, size), dim=-1).flatten(-3, -2)
