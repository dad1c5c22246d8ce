"""Optimizers written for one number at a time, as their papers state them."""

import math
from collections.abc import Callable

Update = Callable[[float, float, float, dict[str, float]], float]
"""(weight, gradient, learning rate, state) -> the new weight; the state is changed in place."""


def momentum_update(nesterov: bool, mu: float = 0.9) -> Update:
    """torch's form: the rate stands outside the velocity, v = mu v + g and w -= lr v."""

    def update(weight: float, grad: float, lr: float, state: dict[str, float]) -> float:
        velocity = state["v"] = mu * state["v"] + grad if "v" in state else grad
        return weight - lr * (grad + mu * velocity if nesterov else velocity)

    return update


def velocity_update(weight: float, grad: float, lr: float, state: dict[str, float]) -> float:
    """The textbook's form: the rate inside the velocity, v = mu v + lr g and w -= v; a drop acts with a delay."""
    velocity = state["v"] = 0.9 * state.get("v", 0.0) + lr * grad
    return weight - velocity


def adamw_update(
    weight: float, grad: float, lr: float, state: dict[str, float], decay: float = 0.1, eps: float = 1e-8
) -> float:
    """arXiv 1711.05101, algorithm 2, with betas 0.9 and 0.999."""
    t = state["t"] = state.get("t", 0) + 1
    first = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * grad
    second = state["s"] = 0.999 * state.get("s", 0.0) + 0.001 * grad * grad
    corrected = (first / (1 - 0.9**t)) / (math.sqrt(second / (1 - 0.999**t)) + eps)
    return weight * (1 - lr * decay) - lr * corrected


def sign_momentum_update(weight: float, grad: float, lr: float, state: dict[str, float], decay: float = 0.1) -> float:
    """Lion (arXiv 2302.06675), with betas 0.9 and 0.99."""
    momentum = state.get("m", 0.0)
    direction = 0.9 * momentum + 0.1 * grad
    state["m"] = 0.99 * momentum + 0.01 * grad
    return weight * (1 - lr * decay) - lr * ((direction > 0) - (direction < 0))
