"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fafed.errors import ConfigError
from fafed.models.options import positive


class MLP(nn.Sequential):
    """Flattens each example to `inputs` numbers. ReLU follows every hidden layer."""

    def __init__(
        self, inputs: int = 784, hidden: Sequence[int] = (200,), outputs: int = 10
    ) -> None:
        positive("MLP", inputs=inputs, outputs=outputs)
        if not isinstance(hidden, Sequence):
            raise ConfigError(f"MLP.hidden must be a list of widths, got {hidden!r}")
        for width in hidden:
            positive("MLP", hidden=width)
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(nn.Flatten(), *layers, nn.Linear(widths[-1], outputs))
