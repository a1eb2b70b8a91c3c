"""The initial weights of the two grey-scale CNNs."""

from __future__ import annotations

from torch import nn


def xavier(module: nn.Module) -> None:
    """Xavier normal weights; each bias 1 / (number of biases in its layer)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            assert layer.bias is not None  # our CNNs have one in every layer
            nn.init.xavier_normal_(layer.weight)
            nn.init.constant_(layer.bias, 1 / layer.bias.numel())
