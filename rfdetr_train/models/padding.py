"""Which tokens of the feature maps lie in the padding of their picture.

B batch, H x W pixels of the input, L levels, h x w grid of a level, S tokens of all levels. As in Deformable DETR
(arXiv 2010.04159), a picture lies in the upper left of its input and boxes are fractions of the picture, not of the
input.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Padding(NamedTuple):
    """The padding as the levels see it."""

    tokens: Tensor
    """(B, S) bool, True where padded."""
    picture_tokens: Tensor
    """(B, L, 2) float32, columns and rows of each level that the picture covers, in whole or in part."""
    shares: Tensor
    """(B, L, 2), the same as shares of the level's width and height: what a box is scaled by to lie on the level."""


def padding_of_levels(padding: Tensor, grids: list[tuple[int, int]]) -> Padding:
    """(B, H, W) bool, True where padded -> the tokens whose first pixel is padded, on each of the grids (h, w)."""
    masks = [functional.interpolate(padding[:, None].float(), grid)[:, 0].bool() for grid in grids]
    covered = torch.stack([torch.stack(((~m[:, 0]).sum(1), (~m[:, :, 0]).sum(1)), -1) for m in masks], 1).float()
    sizes = covered.new_tensor([(width, height) for height, width in grids])
    return Padding(torch.cat([mask.flatten(1) for mask in masks], dim=1), covered, covered / sizes)
