"""The layer that normalises the inputs of a trained model (`data.normalise`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Standardise(nn.Module):
    """(value - centre) / width for each input, in float64; the result has the inputs' type."""

    centre: Tensor
    width: Tensor

    def __init__(self, centre: Sequence[float], width: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("centre", torch.tensor(centre, dtype=torch.float64))
        self.register_buffer("width", torch.tensor(width, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return ((inputs.double() - self.centre) / self.width).to(inputs.dtype)
