"""The prediction heads and the small perceptron that the detector uses in several places.

D width of the queries, C class logits.
"""

import math
from itertools import pairwise

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


def class_head(width: int, class_logits: int) -> nn.Linear:
    """D -> C, every class starting at the prior probability."""
    head = nn.Linear(width, class_logits)
    nn.init.constant_(head.bias, -math.log((1 - PRIOR_PROBABILITY) / PRIOR_PROBABILITY))
    return head


def box_head(width: int) -> MLP:
    """D -> 4 deltas in three layers; the deltas start at zero, so that the first boxes are the references."""
    head = MLP(width, width, width, 4)
    for parameter in head.layers[-1].parameters():
        nn.init.zeros_(parameter)
    return head
