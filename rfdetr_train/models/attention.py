"""Softmax attention by the kernel that is fastest where it runs."""

import torch
from torch import Tensor
from torch.nn import functional


def plain_products_are_faster(device: torch.device) -> bool:
    """Whether two batched products and a softmax beat torch's fused attention: in 16 bits on a CPU.

    The fused kernel's backward pass is made for float32 there and takes several times as long in bfloat16.
    """
    return device.type == "cpu" and torch.is_autocast_enabled("cpu")


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v; all (..., length, d)."""
    if not plain_products_are_faster(query.device):
        return functional.scaled_dot_product_attention(query, key, value)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    return scores.softmax(dim=-1) @ value
