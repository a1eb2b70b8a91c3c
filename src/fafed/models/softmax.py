"""Softmax regression: linear, so with cross entropy a convex problem."""

from __future__ import annotations

from torch import nn

from fafed.models.options import positive


class SoftmaxRegression(nn.Sequential):
    """Flattens each example to `inputs` numbers; starts at zero, where all classes are alike."""

    def __init__(self, inputs: int = 784, outputs: int = 10) -> None:
        positive("SoftmaxRegression", inputs=inputs, outputs=outputs)
        linear = nn.Linear(inputs, outputs)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        super().__init__(nn.Flatten(), linear)
