"""A small non-convex problem in float64, seen both by the library and by plain transcriptions.

Robust regression, f_i(x) = mean over examples of phi(a . x - y), phi(z) = z^2 / (1 + z^2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm
from fafed.data.sources.base import ClientBatches
from fafed.data.sources.examples import BatchSize, Examples
from fafed.objectives.function import Function
from fafed.training.build import build
from fafed.training.loop import Run


def robust(x: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
    a, y = data
    z = a @ x - y
    return (z**2 / (1 + z**2)).mean()


@dataclass
class Problem:
    N: int = 4
    d: int = 7
    examples: int = 24
    b: BatchSize = 3
    B: BatchSize = 9
    seed: int = 0
    identical: bool = False
    clip: float | None = None
    weights: Any = "uniform"
    x0: Tensor = field(init=False)

    def __post_init__(self) -> None:
        r = np.random.default_rng(self.seed)
        shape = (self.N, self.examples)
        shift = r.normal(size=(self.N, 1, self.d))
        a = torch.tensor(r.normal(size=(*shape, self.d)) + shift)
        y = torch.tensor(r.normal(size=shape) + r.normal(size=(self.N, 1)))
        if self.identical:
            a, y = a[:1].expand(self.N, -1, -1), y[:1].expand(self.N, -1)
        self.pool = (a.reshape(-1, self.d), y.reshape(-1))
        self.x0 = torch.tensor(r.normal(size=self.d))
        self.parts = np.split(np.arange(self.N * self.examples), self.N)

    def source(self) -> Examples:
        return Examples(
            self.pool, self.parts, batch_size=self.b, anchor_size=self.B, seed=self.seed
        )

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """A matrix of two rows if there is room, and a vector."""
        rows = 2 if self.d >= 5 else 1
        columns = (self.d - 1) // rows
        return [(rows, columns), (self.d - rows * columns,)] if columns else [(self.d,)]

    def run(self, algorithm: Algorithm, q: int, rounds: int = 1, **options: Any) -> Run:
        return build(
            algorithm,
            Function(robust, self.x0, clip=self.clip, shapes=self.shapes),
            self.source(),
            rounds=rounds,
            local_steps=q,
            seed=self.seed,
            **{"engine": "loop", "weights": self.weights, **options},
        )

    def shared(self, algorithm: Algorithm, q: int, rounds: int, **options: Any) -> list[Any]:
        """The server's state after each round."""
        run = self.run(algorithm, q, rounds, **options)
        return [run.state.shared for _ in run]

    def xs(self, algorithm: Algorithm, q: int, rounds: int, **options: Any) -> Tensor:
        return torch.stack([s.x for s in self.shared(algorithm, q, rounds, **options)])

    # The same oracle for transcriptions: t = 1, 2, ... numbers the steps.

    def g(self, i: int, t: int, x: Tensor) -> Tensor:
        (batch,) = self._batches(i, t, ("round",))
        return self._gradient(x, batch.data)

    def g0(self, i: int, x: Tensor) -> Tensor:
        return self._gradient(x, self._batches(i, 1, ("anchor",)).anchor.data)

    def anchor(self, i: int, t: int, x: Tensor) -> Tensor:
        """On the anchor batch of the round that begins with step t."""
        return self._gradient(x, self._batches(i, t, ("anchor",)).anchor.data)

    def full(self, i: int, x: Tensor) -> Tensor:
        rows = self.parts[i]
        return self._gradient(x, (self.pool[0][rows], self.pool[1][rows]))

    def full_mean(self, x: Tensor) -> Tensor:
        return sum(self.full(i, x) for i in range(self.N)) / self.N

    def _batches(self, i: int, t: int, kinds: Any) -> ClientBatches:
        source = self.source()
        return ClientBatches(source.gather, source.draw(kinds, i, t - 1, 1))

    def _gradient(self, x: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
        a, y = data
        z = a @ x - y
        g = a.T @ (2 * z / (1 + z**2) ** 2) / len(y)
        if self.clip is not None and g.norm() > self.clip:
            g = g * self.clip / g.norm()
        return g


def close(a: Any, b: Any, atol: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)
