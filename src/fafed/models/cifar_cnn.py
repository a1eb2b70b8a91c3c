"""The CNN that the experiments of FAFED use on CIFAR-10, with PyTorch's own initialisation."""

from __future__ import annotations

from torch import nn


class CifarCNN(nn.Sequential):
    """(b, 3, 32, 32) -> (b, 10); 581,866 parameters.

    The paper's table pools after ReLU. ReLU is increasing, so pooling first gives the same function
    with a quarter of the ReLU's work.
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 512),
            nn.ReLU(),
            nn.Linear(512, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
