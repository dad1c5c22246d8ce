"""The prediction heads and the small perceptron that the detector uses in several places.

D width of the queries, C class logits.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PRIOR_PROBABILITY = 0.01  # of every class in every query at the start: focal losses diverge from 0.5 (arXiv 1708.02002)


class MLP(nn.Module):
    """Linear layers with ReLU between them: `widths` are those of the input, of each hidden layer and of the output."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width_in, width_out) for width_in, width_out in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """(..., first width) -> (..., last width)."""
        *hidden, last = self.layers
        shape = x.shape[:-1]
        x = x.flatten(0, -2)  # else a layer returns a view, which ReLU in place first copies
        for layer in hidden:
            x = functional.relu(layer(x), inplace=True)
        return last(x).unflatten(0, shape)


class BoxHead(MLP):
    """D -> 4 deltas. Of the many queries only those matched with a target get a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., 4)."""
        # elsewhere the host would have to wait for which rows they are
        if x.device.type != "cpu" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().forward(x)
        layers = [tensor for layer in self.layers for tensor in (layer.weight, layer.bias)]
        return _RowsWithGradient.apply(x.flatten(0, -2), *layers).unflatten(0, x.shape[:-1])


class _RowsWithGradient(torch.autograd.Function):
    """A perceptron on rows (n, D) whose backward pass is that of the rows with a gradient; the others would add zeros.

    It keeps the rows alone, nothing of the layers between: what it needs of those it computes once more.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, *layers: Tensor) -> Tensor:
        """`layers`: weight and bias of each in turn."""
        ctx.save_for_backward(rows, *layers)
        ctx.dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        return _through(rows, layers, ctx.dtype)[-1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, *layers = ctx.saved_tensors
        places = gradient.ne(0).any(dim=1).nonzero().squeeze(1)
        *inputs, _ = _through(rows[places], layers, ctx.dtype)
        slope = gradient[places].to(layers[0].dtype)
        gradients: list[Tensor] = []
        for number in reversed(range(len(inputs))):
            weight, entered = layers[2 * number], inputs[number].to(slope.dtype)
            gradients = [slope.t() @ entered, slope.sum(dim=0), *gradients]
            slope = slope @ weight
            if number > 0:
                slope = slope * (entered > 0)
        return torch.zeros_like(rows).index_copy_(0, places, slope.to(rows.dtype)), *gradients


def _through(rows: Tensor, layers: Sequence[Tensor], dtype: torch.dtype | None) -> list[Tensor]:
    """What enters each layer, and what leaves the last one; products are taken in `dtype`, None for that of `rows`."""
    values = [rows]
    # autocast's cache would keep copies of weights that are made without a gradient, for uses that need one
    with torch.autocast("cpu", dtype, cache_enabled=False) if dtype else nullcontext():
        for number in range(0, len(layers), 2):
            if number > 0:
                values[-1] = values[-1].relu_()
            values.append(functional.linear(values[-1], layers[number], layers[number + 1]))
    return values


def class_head(width: int, class_logits: int) -> nn.Linear:
    """D -> C, every class starting at the prior probability."""
    head = nn.Linear(width, class_logits)
    nn.init.constant_(head.bias, -math.log((1 - PRIOR_PROBABILITY) / PRIOR_PROBABILITY))
    return head


def box_head(width: int) -> BoxHead:
    """D -> 4 deltas in three layers; the deltas start at zero, so that the first boxes are the references."""
    head = BoxHead(width, width, width, 4)
    for parameter in head.layers[-1].parameters():
        nn.init.zeros_(parameter)
    return head
