"""Clients and a small network, as arguments of fafed.start and fafed.train."""

from __future__ import annotations

import torch
from torch import nn

import fafed


def clients(n=4, size=30, d=6, classes=3, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(classes, d, generator=g, dtype=dtype)
    found = []
    for i in range(n):
        y = torch.randint(0, 2, (size,), generator=g) + (i % (classes - 1))
        found.append((centres[y] + torch.randn(size, d, generator=g, dtype=dtype), y))
    return found


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


COMMON = {"rounds": 3, "local_steps": 4, "batch_size": 5}


class Late(fafed.schedules.Schedule):
    """1 for three rounds of four steps, then far too much."""

    def __call__(self, t):
        return torch.where(t <= 12, 1.0, torch.inf).double()
