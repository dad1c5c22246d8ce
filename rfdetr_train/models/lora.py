"""Low-rank adapters on the encoder (LoRA, arXiv 2106.09685), made by peft."""

from torch import nn

from rfdetr_train.config import ModelConfig
from rfdetr_train.errors import UserError, require


def add_adapters(backbone: nn.Module, config: ModelConfig) -> None:
    """Freeze `backbone` and give each linear layer of its attention and MLPs an adapter, which trains.

    Raises:
        UserError: peft is missing, or there are no such layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError(
            f"model.lora_rank={config.lora_rank}: needs peft; pip install 'rfdetr_train[lora]', or use lora_rank=0"
        ) from error
    layers = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear) and _is_adapted(name)]
    none = f"{config.backbone} has no linear layers of attention or MLP to adapt; use lora_rank=0"
    require(bool(layers), "model.lora_rank", config.lora_rank, none)
    for module in backbone.modules():
        if hasattr(module, "qkv_bias_separate"):  # timm otherwise takes the layer's weight, past its adapter
            module.qkv_bias_separate = True  # type: ignore[assignment]
    alpha = config.lora_rank if config.lora_alpha is None else config.lora_alpha
    inject_adapter_in_model(
        LoraConfig(r=config.lora_rank, lora_alpha=alpha, lora_dropout=config.lora_dropout, target_modules=layers),
        backbone,
    )


def _is_adapted(name: str) -> bool:
    return any(part in ("attn", "mlp") for part in name.split("."))
