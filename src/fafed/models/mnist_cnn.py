"""The CNN that the experiments of FAFED use on MNIST."""

from __future__ import annotations

from torch import nn

from fafed.models.initialisation import xavier


class MnistCNN(nn.Sequential):
    """(b, 1, 28, 28) -> (b, 10); 431,080 parameters.

    The paper's table pools after ReLU. ReLU is increasing, so pooling first gives the same function
    with a quarter of the ReLU's work.
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 20, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(20, 50, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(50 * 4 * 4, 500),
            nn.ReLU(),
            nn.Linear(500, 10),
        )
        xavier(self)
