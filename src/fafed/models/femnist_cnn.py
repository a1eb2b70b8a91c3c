"""The CNN that LEAF has for FEMNIST (https://arxiv.org/abs/1812.01097)."""

from __future__ import annotations

from torch import nn


class FemnistCNN(nn.Sequential):
    """(b, 1, 28, 28) -> (b, 62); 6,603,710 parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.MaxPool2d(2),  # before ReLU: the same function with less work
            nn.ReLU(),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(7 * 7 * 64, 2048),
            nn.ReLU(),
            nn.Linear(2048, 62),
        )
