"""Weights of layers with low-rank adapters (LoRA, arXiv 2106.09685), under the names that peft gives them.

peft holds the weight W of a layer `X` as `X.base_layer.weight` and its adapter's matrices, (r, in) and (out, r), as
`X.lora_A.default.weight` and `X.lora_B.default.weight`.
"""

from collections.abc import Container, Mapping

from torch import Tensor


def under_adapters(state: Mapping[str, Tensor], names: Container[str]) -> dict[str, Tensor]:
    """Plain weights under the `names` of a model with adapters; a model without changes nothing."""
    return {_base_name(name) if _base_name(name) in names else name: value for name, value in state.items()}


def merge_adapters(state: Mapping[str, Tensor], alpha: float | None) -> dict[str, Tensor]:
    """The same function without adapters: each W + alpha / r * B A under its plain name; alpha None counts as r."""
    merged = {}
    for name, value in state.items():
        layer, is_base, leaf = name.partition(".base_layer.")
        if is_base and leaf == "weight":
            down, up = (state[f"{layer}.lora_{matrix}.default.weight"] for matrix in "AB")
            value = value + (1.0 if alpha is None else alpha / len(down)) * (up @ down)
        if ".lora_" not in name:
            merged[f"{layer}.{leaf}" if is_base else name] = value
    return merged


def _base_name(name: str) -> str:
    layer, _, leaf = name.rpartition(".")
    return f"{layer}.base_layer.{leaf}"
