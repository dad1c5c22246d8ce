"""What each parameter of the detector is: the ground of layer-wise learning rates and of weight decay by kind."""

from collections.abc import Mapping

from torch import nn

from rfdetr_train.roles import ParameterRole

PART_OF_PREFIX = {"backbone": "encoder", "projector": "projector", "decoder": "decoder"}  # everything else: head


def parameter_roles(model: nn.Module, layers_above: Mapping[str, int]) -> dict[str, ParameterRole]:
    """The role of every parameter of an `RFDETR`, by name, in the order of `named_parameters`.

    Args:
        layers_above: of every parameter of the backbone, by its name there; its lowest layer are its embeddings.
    """
    norms = {name for name, module in model.named_modules() if "Norm" in type(module).__name__}
    above = {f"backbone.{name}": number for name, number in layers_above.items()}
    stem = max(above.values())
    return {name: _role(name, p.ndim, norms, above.get(name, 0), stem) for name, p in model.named_parameters()}


def _role(name: str, ndim: int, norms: set[str], layers_above: int, stem: int) -> ParameterRole:
    part = PART_OF_PREFIX.get(name.split(".")[0], "head")
    kind = "embedding" if part == "encoder" and layers_above == stem else _kind(name, norms)
    hidden = kind == "weight" and ndim == 2 and _lies_between_hidden_layers(name, part)
    return ParameterRole(part, kind, layers_above, hidden_matrix=hidden)


def _lies_between_hidden_layers(name: str, part: str) -> bool:
    """Of the two-stage selection only the projections of the memory: its other matrices are class and box heads."""
    return part in ("encoder", "decoder") or (name.startswith("two_stage.") and name.endswith(".project.weight"))


def _kind(name: str, norms: set[str]) -> str:
    module, _, leaf = name.rpartition(".")
    if module in norms:
        return "norm"
    if leaf.startswith("gamma"):  # timm's LayerScale
        return "scale"
    return "bias" if "bias" in leaf else "weight"
