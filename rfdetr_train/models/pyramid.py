"""Feature maps at strides 8, 16 and 32 from any network of timm that has them: ResNet, ConvNeXt, Swin and so on.

B batch, H x W pixels of the input, C channels of a map.
"""

import torch
from timm.models import group_parameters
from torch import Tensor, nn

from rfdetr_train.config import ModelConfig
from rfdetr_train.errors import UserError
from rfdetr_train.models.timm_network import create_network

STRIDES_PX = (8, 16, 32)
PROBE_PX = (96, 64)
NO_MAPS = "is no plain vision transformer, nor has it maps at strides 8, 16 and 32 for pictures of any size"


class Pyramid(nn.Module):
    """`net`, and the last of its maps at each stride; what lies behind them in the network is dropped."""

    def __init__(self, config: ModelConfig, pretrained: bool = False) -> None:
        super().__init__()
        self.name = config.backbone
        try:
            self.net = create_network(config, pretrained, strict_img_size=False)  # Swin would take one size only
        except TypeError:  # others take any size without being asked
            self.net = create_network(config, pretrained)
        info = getattr(self.net, "feature_info", [])
        index_of = {one["reduction"]: index for index, one in enumerate(info)}
        if not index_of.keys() >= set(STRIDES_PX):
            raise self._refusal()
        if not hasattr(self.net, "group_matcher"):
            raise self._refusal("has no groups of layers in timm, which learning rates go by")
        self.indices = [index_of[stride] for stride in STRIDES_PX]
        self.channels = [info[index]["num_chs"] for index in self.indices]
        self.net.prune_intermediate_layers(self.indices, prune_norm=True)
        self._check_maps(config.input_channels)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images (B, input channels, H, W) -> maps (B, C, H / 8, W / 8) and so on, the finest first."""
        return self.net.forward_intermediates(images, indices=self.indices, intermediates_only=True)

    def layers_above(self) -> dict[str, int]:
        """By parameter: 1 for timm's last group of layers, and one more for each group down to the stem."""
        layers = group_parameters(self.net, self.net.group_matcher(coarse=False), reverse=True)
        top = max(layers.values())
        return {f"net.{name}": top + 1 - layers[name] for name, _ in self.net.named_parameters()}

    @torch.no_grad()
    def _check_maps(self, input_channels: int) -> None:
        """Some networks take pictures of one size only, or have maps of other sides than their strides say."""
        self.eval()
        images = torch.zeros(1, input_channels, *PROBE_PX)
        try:
            shapes = [tuple(one.shape[1:]) for one in self(images)]
        except (RuntimeError, AssertionError) as error:
            raise self._refusal() from error
        expected = zip(self.channels, STRIDES_PX, strict=True)
        if shapes != [(channels, *(side // stride for side in PROBE_PX)) for channels, stride in expected]:
            raise self._refusal()
        self.train()

    def _refusal(self, reason: str = NO_MAPS) -> UserError:
        others = "choose another, such as resnet50, convnext_tiny or swin_tiny_patch4_window7_224"
        return UserError(f"model.backbone={self.name}: {reason}; {others}")
