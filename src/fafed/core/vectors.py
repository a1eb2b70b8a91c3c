"""Updates of whole vectors, in as few passes over the memory as torch allows."""

from __future__ import annotations

import torch
from torch import Tensor


def step(x: Tensor, rate: float | Tensor, direction: Tensor) -> Tensor:
    """x - rate * direction."""
    if isinstance(rate, Tensor):
        return torch.addcmul(x, -rate, direction)
    return torch.sub(x, direction, alpha=rate)


def step_in_place(x: Tensor, rate: float | Tensor, direction: Tensor) -> None:
    """x <- x - rate * direction, with the numbers of `step`."""
    if isinstance(rate, Tensor):
        x.addcmul_(-rate, direction)
    else:
        x.sub_(direction, alpha=rate)


def scaled_step(x: Tensor, rate: float | Tensor, direction: Tensor, A: Tensor | float) -> Tensor:
    """x - rate * direction / A; A is a vector, or 1."""
    if not isinstance(A, Tensor):
        return step(x, rate, direction)
    if isinstance(rate, Tensor):
        return step(x, rate, direction / A)
    return torch.addcdiv(x, direction, A, value=-rate)
