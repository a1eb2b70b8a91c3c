"""Batches of made-up examples, and an nn.Module as the objective that engines see."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fafed.algorithm import Batch
from fafed.objective import Model


def batch(n=8, d=6, classes=3, key=7, fresh=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, dtype=torch.float64, generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    return Batch((x, y), torch.tensor(key), torch.tensor(fresh))


def model(module, example, **options):
    found = Model(module, F.cross_entropy, **options)
    found.probe(example)
    return found
