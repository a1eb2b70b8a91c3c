"""Clients whose inputs have very different sizes, for a softmax regression."""

from __future__ import annotations

import torch
from torch import Tensor

CLIENTS, EXAMPLES, INPUTS, CLASSES = 20, 300, 50, 5
NOISE = 0.5


def clients() -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Each coordinate has its own size, from 0.03 to 3. The classes come from one linear rule with
    noise. Each client's inputs have their own mean, so its classes have their own shares."""
    chance = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-1.5, 0.5, INPUTS)[torch.randperm(INPUTS, generator=chance)]
    rule = torch.randn(INPUTS, CLASSES, generator=chance)

    def draw(count: int, mean: Tensor) -> tuple[Tensor, Tensor]:
        z = mean + torch.randn(count, INPUTS, generator=chance)
        scores = z @ rule + NOISE * torch.randn(count, CLASSES, generator=chance)
        return z * sizes, scores.argmax(1)

    means = 0.3 * torch.randn(CLIENTS, INPUTS, generator=chance)
    shards = [draw(EXAMPLES, mean) for mean in means]
    tests = [draw(100, mean) for mean in means]
    return shards, (torch.cat([x for x, _ in tests]), torch.cat([y for _, y in tests]))
