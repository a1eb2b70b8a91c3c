"""Updates of whole vectors."""

from __future__ import annotations

import torch
from torch import Tensor


def step(x: Tensor, rate: float | Tensor, direction: Tensor) -> Tensor:
    """x - rate * direction."""
    if isinstance(rate, Tensor):
        return torch.addcmul(x, -rate, direction)
    return torch.sub(x, direction, alpha=rate)
