"""The weighted mean of the clients' messages."""

from __future__ import annotations

from typing import Generic

import torch
from torch import Tensor

from fafed.core.tree import T, map, take
from fafed.kernels import vectors

PIECE = 2**16  # numbers; the float64 copy of a piece takes 512 KiB


class Mean(Generic[T]):
    """A weighted mean, accumulated in float64 in the order of the calls, then cast back."""

    def __init__(self) -> None:
        self.total: T | None = None
        self.like: T | None = None
        self.weight = 0.0

    def add(self, tree: T, weight: float) -> None:
        """Add one tree."""
        if self.total is None:
            self._start(tree)
        map(lambda total, leaf: _absorb(total, leaf, weight), self.total, tree)
        self.weight += weight

    def add_stacked(self, tree: T, weights: Tensor) -> None:
        """Add many trees at once. The first dimension of every leaf runs over the trees."""
        if self.total is None:
            self._start(take(tree, 0))

        def absorb(total: Tensor, leaf: Tensor) -> None:
            vectors.add(total.view(-1), weights, leaf.reshape(len(weights), -1))

        map(absorb, self.total, tree)
        self.weight += float(weights.sum())

    def merge(self, other: Mean[T]) -> None:
        """Add all trees of another mean."""
        if self.total is None:
            self.total, self.like = other.total, other.like
        else:
            map(Tensor.add_, self.total, other.total)
        self.weight += other.weight

    def value(self) -> T:
        assert self.total is not None, "a mean of nothing"

        def cast(total: Tensor, like: Tensor) -> Tensor:
            mean = total / self.weight
            return (mean if like.is_floating_point() else mean.round()).to(like.dtype)

        return map(cast, self.total, self.like)

    def _start(self, tree: T) -> None:
        self.total = map(lambda leaf: torch.zeros_like(leaf, dtype=torch.float64), tree)
        self.like = map(lambda leaf: leaf.new_empty(0), tree)


def _absorb(total: Tensor, leaf: Tensor, weight: float) -> None:
    """total <- total + weight * leaf. A leaf of another type is converted piece by piece, so that
    the converted piece stays in the cache."""
    if leaf.numel() > PIECE and leaf.is_contiguous() and total.is_contiguous():
        pieces = zip(
            torch.split(total.view(-1), PIECE), torch.split(leaf.view(-1), PIECE), strict=True
        )
        for part, own in pieces:
            part.add_(own, alpha=weight)
    else:
        total.add_(leaf, alpha=weight)
