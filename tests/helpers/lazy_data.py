"""Map-style datasets that worker processes can import."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch.utils.data import Dataset


class Fixed(Dataset):
    """Items that are always the same. Counts how many were read."""

    def __init__(self, client=0, n=12, d=3):
        g = torch.Generator().manual_seed(client)
        self.x = torch.randn(n, d, generator=g) + client
        self.y = torch.randint(0, 2, (n,), generator=g)
        self.reads = 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.reads += 1
        return self.x[i], int(self.y[i])


class Augmented(Fixed):
    """Noise from all three generators that a process shares."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        noise = torch.randn(3) + float(np.random.rand()) + random.random()  # noqa: NPY002
        return x + noise, y


class Tokens(Dataset):
    """Items of different lengths, as dictionaries."""

    def __init__(self, client=0, n=9):
        self.items = [
            {"ids": [client + 1] * (1 + (i + client) % 4), "label": float(i % 2)} for i in range(n)
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def padded(items):
    """A collate_fn: pads, and drops tokens at random."""
    longest = max(len(item["ids"]) for item in items)
    ids = torch.zeros(len(items), longest)
    for row, item in zip(ids, items, strict=True):
        row[: len(item["ids"])] = torch.tensor(item["ids"], dtype=torch.float32)
    kept = torch.rand(ids.shape) < 0.8
    return {"ids": ids * kept, "labels": torch.tensor([item["label"] for item in items])}
