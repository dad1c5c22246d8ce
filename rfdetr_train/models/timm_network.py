"""A network made by timm, without its classifier; what goes wrong is said with its name and the remedy."""

from difflib import get_close_matches
from typing import Any

import timm

from rfdetr_train.config import ModelConfig
from rfdetr_train.errors import UserError


def create_network(config: ModelConfig, pretrained: bool, **sizes: Any) -> Any:
    """timm's `config.backbone`; if `pretrained` with timm's weights, which timm itself fits to `sizes`.

    Raises:
        UserError: timm does not know the name, cannot build it so, or has no weights for it within reach.
        TypeError: this network does not take one of `sizes`.
    """
    name = config.backbone
    if not timm.is_model(name):
        nearest = ", ".join(get_close_matches(name, timm.list_models(), n=5, cutoff=0.0))
        raise UserError(f"model.backbone={name}: timm has no such model; the nearest names are {nearest}")
    try:
        return timm.create_model(name, pretrained, num_classes=0, in_chans=config.input_channels, **sizes)
    except Exception as error:  # timm's assertions, and whatever a hub raises that cannot be reached
        if isinstance(error, TypeError) and sizes:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        if not pretrained:
            raise UserError(
                f"model.backbone={name}: timm cannot build it in these sizes ({reason}); change them or choose another"
            ) from error
        raise UserError(
            f"model.pretrained=true: timm's weights of {name} cannot be loaded ({reason}); connect this machine, copy "
            "timm's cache from one that is, or use model.pretrained=false"
        ) from error
