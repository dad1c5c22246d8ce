"""The projector: the backbone's maps become the feature map that queries are picked from and look at.

B batch, E width of the backbone, D width of the detector, h x w grid of the map. Source: LW-DETR (arXiv 2406.03459).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class ChannelLayerNorm(nn.LayerNorm):
    """LayerNorm over the channels of each position of a map (B, C, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h, w)."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvX(nn.Module):
    """Convolution without bias, channel LayerNorm, SiLU; the map keeps its size."""

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = ChannelLayerNorm(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, h, w) -> (B, channels_out, h, w)."""
        return functional.silu(self.norm(self.conv(x)))


class Bottleneck(nn.Module):
    """Two ConvX of 3 x 3 at one width, without a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = ConvX(channels, channels, 3)
        self.conv2 = ConvX(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, h, w) -> (B, channels, h, w)."""
        return self.conv2(self.conv1(x))


class C2f(nn.Module):
    """Split the channels in two, send one half through a chain of bottlenecks, join all that came by."""

    def __init__(self, channels_in: int, channels_out: int, num_bottlenecks: int = 3) -> None:
        super().__init__()
        half = channels_out // 2
        self.split = ConvX(channels_in, 2 * half, 1)
        self.bottlenecks = nn.ModuleList(Bottleneck(half) for _ in range(num_bottlenecks))
        self.join = ConvX((2 + num_bottlenecks) * half, channels_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, h, w) -> (B, channels_out, h, w)."""
        parts = list(self.split(x).chunk(2, dim=1))
        for bottleneck in self.bottlenecks:
            parts.append(bottleneck(parts[-1]))
        return self.join(torch.cat(parts, dim=1))


class Projector(nn.Module):
    """One level, P4: a map on the backbone's own grid."""

    num_levels = 1

    def __init__(self, encoder_width: int, num_features: int, hidden_dim: int) -> None:
        super().__init__()
        self.c2f = C2f(num_features * encoder_width, hidden_dim)
        self.norm = ChannelLayerNorm(hidden_dim)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Maps of the backbone, each (B, E, h, w) -> one map (B, D, h, w) per level."""
        return [self.norm(self.c2f(torch.cat(features, dim=1)))]
