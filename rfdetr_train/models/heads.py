"""The prediction heads and the small perceptron that the detector uses in several places.

D width of the queries, C class logits.
"""

import math
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
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return _RowsWithGradient.apply(super().forward, x.flatten(0, -2), *trained).unflatten(0, x.shape[:-1])


class _RowsWithGradient(torch.autograd.Function):
    """A network on rows whose backward pass is that of the rows with a gradient; it computes those once more.

    The others would add zeros. It keeps the rows alone in memory, nothing of the layers between.
    """

    @staticmethod
    def forward(ctx: Any, network: Any, rows: Tensor, *parameters: Tensor) -> Tensor:
        ctx.network, ctx.autocast = network, torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(rows, *parameters)
        # without the cache, in which a cast weight would lose its gradient
        with torch.autocast("cpu", torch.get_autocast_dtype("cpu"), ctx.autocast, cache_enabled=False):
            return network(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, *parameters = ctx.saved_tensors
        places = gradient.ne(0).any(dim=1).nonzero().squeeze(1)
        picked = rows[places].requires_grad_()
        with torch.enable_grad(), torch.autocast("cpu", torch.get_autocast_dtype("cpu"), ctx.autocast):
            outputs = ctx.network(picked)
        picked_gradient, *others = torch.autograd.grad(outputs, [picked, *parameters], gradient[places])
        return None, torch.zeros_like(rows).index_copy_(0, places, picked_gradient), *others


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
