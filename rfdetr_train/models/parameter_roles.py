"""What each parameter of the detector is: the ground of layer-wise learning rates and of weight decay by kind."""

from torch import nn

from rfdetr_train.roles import ParameterRole

PART_OF_PREFIX = {"backbone": "encoder", "projector": "projector", "decoder": "decoder"}  # everything else: head


def parameter_roles(model: nn.Module, last_feature_block: int) -> dict[str, ParameterRole]:
    """The role of every parameter of an `RFDETR`, by name, in the order of `named_parameters`.

    Args:
        last_feature_block: counted from 1; the layer-wise decay counts down from the layer after it.
    """
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    return {name: _role(name, p.ndim, norms, last_feature_block + 1) for name, p in model.named_parameters()}


def _role(name: str, ndim: int, norms: set[str], layers: int) -> ParameterRole:
    part = PART_OF_PREFIX.get(name.split(".")[0], "head")
    kind = _kind(name, norms)
    return ParameterRole(
        part,
        kind,
        layers_above=_layers_above(name, kind, layers) if part == "encoder" else 0,
        hidden_matrix=kind == "weight" and ndim == 2 and _lies_between_hidden_layers(name, part),
    )


def _lies_between_hidden_layers(name: str, part: str) -> bool:
    """Of the two-stage selection only the projections of the memory: its other matrices are class and box heads."""
    return part in ("encoder", "decoder") or (name.startswith("two_stage.") and name.endswith(".project.weight"))


def _kind(name: str, norms: set[str]) -> str:
    module, _, leaf = name.rpartition(".")
    if leaf in ("cls_token", "pos_embed") or ".patch_embed." in name:
        return "embedding"
    if module in norms:
        return "norm"
    if leaf == "gamma":  # timm's LayerScale
        return "scale"
    return "bias" if leaf == "bias" else "weight"


def _layers_above(name: str, kind: str, layers: int) -> int:
    """How many of the encoder's `layers` lie above a parameter; its embeddings lie below block 0, its norm on top."""
    if kind == "embedding":
        return layers + 1
    parts = name.split(".")
    return layers - int(parts[parts.index("blocks") + 1]) if "blocks" in parts else 0
