"""The private gradient: each example's gradient is clipped, the sum gets noise, and is divided by
the expected size of the batch. The actual size would tell who is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fafed.errors import FafedError

CHUNK_BYTES = 2**26  # bytes of the gradients that are in memory at the same time
STRETCH = 2**20  # numbers of noise that are drawn at a time


class Numbers(Protocol):
    """An endless row of random numbers."""

    def standard_normal(self, count: int, /) -> NDArray[np.float64]: ...


def chunk_size(x: Tensor) -> int:
    """How many examples' gradients are computed at the same time."""
    return max(1, CHUNK_BYTES // (x.numel() * x.element_size()))


def clipped_sum(
    gradients: Callable[[slice], Tensor],
    count: int,
    clip: float,
    x: Tensor,
    *,
    strict: bool = True,
) -> Tensor:
    """The sum of the examples' gradients, each clipped to the norm `clip`.

    gradients: gives the gradients at x of some of the examples, one per row.
    count: how many examples there are.
    strict: a gradient with NaN or infinity is an error. If not, it counts as zero.
    """
    total = torch.zeros_like(x)
    size = chunk_size(x)
    for start in range(0, count, size):
        rows = gradients(slice(start, min(start + size, count))).detach()
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        counts = torch.isfinite(norms)
        counts |= strict
        factors = clip_factors(norms, counts, clip).to(rows.dtype)
        total += factors @ torch.where(counts[:, None], rows, 0.0)
    return total


def clip_factors(norms: Tensor, counts: Tensor, clip: float) -> Tensor:
    """What to multiply gradients of these norms by; zero for those that do not count."""
    check_finite(norms[counts])
    return torch.where(counts, clip / norms.clamp(min=clip), 0.0)


def check_finite(norms: Tensor) -> None:
    if not torch.isfinite(norms).all():
        raise FafedError("the gradient of an example is not finite: look for NaN in the data")


def keyed_draws(key: str) -> np.random.Generator:
    """Random numbers that are a function of the key alone."""
    words = np.frombuffer(hashlib.sha256(key.encode()).digest()[:16], np.uint64)
    return np.random.Generator(np.random.Philox(key=words))


def add_noise(total: Tensor, deviation: float, draws: Numbers) -> Tensor:
    """The sum with normal noise in every number."""
    noisy = total.clone()
    for start in range(0, total.numel(), STRETCH):
        part = noisy[start : start + STRETCH]
        drawn = torch.from_numpy(draws.standard_normal(part.numel()))
        part += (deviation * drawn).to(part)
    return noisy
