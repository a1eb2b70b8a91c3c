"""Batches of made-up examples, and an nn.Module as the objective that engines see."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fafed.core.batch import Batch
from fafed.objectives.module import Model


def batch(n=8, d=6, classes=3, key=7, fresh=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, dtype=torch.float64, generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    return Batch((x, y), torch.tensor(key), torch.tensor(fresh))


def model(module, example, **options):
    found = Model(module, F.cross_entropy, **options)
    found.probe(example)
    return found


class InPlace(nn.Module):
    """Counts its calls and follows the mean of its inputs, in place."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3).double()
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(6, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.remember(x)
        return self.linear(x - self.mean)

    def remember(self, x):
        self.n += 1
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))


class Assigned(InPlace):
    """The same, by assignment."""

    def remember(self, x):
        self.n = self.n + 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)


class Normed(nn.Sequential):
    """A model that mixes the examples of a batch."""

    def __init__(self, inputs=6, outputs=3):
        super().__init__(nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs))
