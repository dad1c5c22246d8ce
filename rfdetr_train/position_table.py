"""A transformer's learned table of positions on another grid of patches."""

import math

from torch import Tensor
from torch.nn import functional

from rfdetr_train.boxes import at_least_float32


def resize_positions(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Bicubic with antialias where the grid is another one, in float32 or more; the table itself where it is not.

    Args:
        table: (1, s s, E), the patches of a square grid row by row, without the class token.
        grid: (h, w).

    Returns:
        (1, h, w, E).
    """
    side = math.isqrt(table.shape[1])
    positions = table.view(1, side, side, -1)
    if grid == (side, side):
        return positions
    channels_first = at_least_float32(positions.permute(0, 3, 1, 2))
    resized = functional.interpolate(channels_first, grid, mode="bicubic", align_corners=False, antialias=True)
    return resized.permute(0, 2, 3, 1)
