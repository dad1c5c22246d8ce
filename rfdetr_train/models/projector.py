"""The projector: the backbone's maps become the feature maps that queries are picked from and look at.

B batch, C channels of a map of the backbone, D width of the detector, h x w grid of a map. Source: LW-DETR (arXiv
2406.03459) for transformers; what a pyramid gets is this project's own.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from rfdetr_train.config import LEVELS, ModelConfig


class ChannelLayerNorm(nn.LayerNorm):
    """LayerNorm over the channels of each position of a map (B, C, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h, w)."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvX(nn.Module):
    """Convolution without bias, channel LayerNorm, activation; a stride of 2 halves the map, 1 keeps its size."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel_size: int,
        stride: int = 1,
        activation: Callable[[Tensor], Tensor] = functional.silu,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel_size, stride, kernel_size // 2, bias=False)
        self.norm = ChannelLayerNorm(channels_out)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, h, w) -> (B, channels_out, h / stride, w / stride), rounded up."""
        return self.activation(self.norm(self.conv(x)))


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


class Level(nn.Module):
    """One feature level: the backbone's maps, each brought to the level's grid by a resizer, joined by a C2f."""

    def __init__(self, channels: list[int], level: str, config: ModelConfig) -> None:
        super().__init__()
        steps = LEVELS.index(level) - LEVELS.index("P4")  # so often is P4's grid halved
        if config.is_pyramid:
            joined = len(channels) * config.hidden_dim
            sides = [steps + 1 - index for index in range(len(channels))]  # the maps have the strides of P3, P4, P5
            resizers = [pyramid_resizer(c, config.hidden_dim, n) for c, n in zip(channels, sides, strict=True)]
        else:
            joined = sum(c // 2 if level == "P3" else c for c in channels)
            resizers = [transformer_resizer(c, steps) for c in channels]
        self.resizers = nn.ModuleList(resizers)
        self.c2f = C2f(joined, config.hidden_dim)
        self.norm = ChannelLayerNorm(config.hidden_dim)

    def join(self, features: list[Tensor]) -> Tensor:
        """Maps of the backbone, (B, C, h, w) each -> a map (B, D, h, w) on the level's grid."""
        resized = [resizer(feature) for resizer, feature in zip(self.resizers, features, strict=True)]
        return self.norm(self.c2f(torch.cat(resized, dim=1)))


class Projector(Level):
    """The levels that the config asks for, the finest first.

    It is the first level itself: so the parameters of a detector of one level have no number in their names.
    """

    def __init__(self, channels: list[int], config: ModelConfig) -> None:
        super().__init__(channels, config.levels[0], config)
        others = enumerate(config.levels[1:], start=1)
        self.others = nn.ModuleDict({str(number): Level(channels, level, config) for number, level in others})

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Maps of the backbone, (B, C, h, w) each -> one map (B, D, h, w) per level."""
        levels: list[Level] = [self, *self.others.values()]  # type: ignore[list-item]
        return [level.join(features) for level in levels]


def transformer_resizer(channels: int, steps: int) -> nn.Module:
    """From the grid of the patches to twice the grid (steps = -1, half the channels), the same, or half of it (1)."""
    if steps < 0:
        return nn.ConvTranspose2d(channels, channels // 2, kernel_size=2, stride=2)
    return ConvX(channels, channels, 3, stride=2, activation=functional.relu) if steps else nn.Identity()


def pyramid_resizer(channels: int, hidden_dim: int, steps: int) -> nn.Module:
    """To D channels, then to a grid halved `steps` times by means, or doubled -`steps` times by interpolation."""
    lateral = ConvX(channels, hidden_dim, 1)
    if steps < 0:
        return nn.Sequential(lateral, nn.Upsample(scale_factor=2**-steps, mode="bilinear"))
    return nn.Sequential(lateral, nn.AvgPool2d(2**steps)) if steps else lateral
