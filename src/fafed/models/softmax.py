"""Softmax regression: linear, so with cross entropy a convex problem."""

from __future__ import annotations

from torch import Tensor, nn

from fafed.models.options import positive


class SoftmaxRegression(nn.Module):
    """Flattens each example to `inputs` numbers; starts at zero, where all classes are alike."""

    def __init__(self, inputs: int = 784, outputs: int = 10) -> None:
        super().__init__()
        positive("SoftmaxRegression", inputs=inputs, outputs=outputs)
        self.linear = nn.Linear(inputs, outputs)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1))
        return logits
