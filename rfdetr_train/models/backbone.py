"""The backbone that the config names: a plain vision transformer or a pyramid, with adapters if asked for."""

from rfdetr_train.config import ModelConfig
from rfdetr_train.models.lora import add_adapters
from rfdetr_train.models.pyramid import Pyramid
from rfdetr_train.models.windowed_vit import WindowedViT


def build_backbone(config: ModelConfig, pretrained: bool) -> WindowedViT | Pyramid:
    """`config.backbone` with initial values or, if `pretrained`, with the weights that timm has for it.

    Raises:
        UserError: timm does not know the name, cannot build it in these sizes, or has no weights for it within reach;
            or it is another kind of network.
    """
    backbone = Pyramid(config, pretrained) if config.is_pyramid else WindowedViT(config, pretrained)
    if config.lora_rank:
        add_adapters(backbone, config)
    return backbone
