"""Softmax regression. It is linear, so with cross entropy the problem is convex."""

from __future__ import annotations

from torch import nn

from fafed.models.options import positive


class SoftmaxRegression(nn.Sequential):
    """Flattens each example to `inputs` numbers. Starts at zero: all classes are equally likely."""

    def __init__(self, inputs: int = 784, outputs: int = 10) -> None:
        positive("SoftmaxRegression", inputs=inputs, outputs=outputs)
        linear = nn.Linear(inputs, outputs)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        super().__init__(nn.Flatten(), linear)
