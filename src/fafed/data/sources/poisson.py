"""Poisson sampling: each example is in a batch with the same probability, on its own.

This is what the accounting of differential privacy assumes. Batches differ in size. They are filled
up to a cap with rows that do not count. Whether an example is drawn is a function of (seed, client,
step, example), so one example more or less changes no other draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fafed.core import randomness, tree
from fafed.core.batch import Draw
from fafed.data.sources.examples import BatchSize, Drawn, Draws, Examples, Indices
from fafed.errors import FafedError


class Sample(NamedTuple):
    """The data of a batch that was filled up."""

    data: Any
    rows: Tensor  # (cap,): the rows of the pool; -1 for those that fill up the batch
    expected: Tensor  # the expected number of examples


class Poisson(Examples):
    """A `Source` of Poisson samples from the same examples."""

    def __init__(self, examples: Examples, cap: Callable[[int, float], int]) -> None:
        """cap: the most rows of a batch, from the number of examples and their sampling rate."""
        super().__init__(
            examples.pool,
            examples.parts,
            batch_size=examples.batch_size,
            anchor_size=examples.anchor_size,
            seed=examples.seed,
        )
        self.cap = cap

    def rates(self, client: int) -> dict[str, float]:
        """Kind of batch -> the probability that an example is in it."""
        return {kind: self._rate(client, size) for kind, size in self._sizes().items()}

    def _sizes(self) -> dict[str, BatchSize]:
        return {"round": self.batch_size, "anchor": self.anchor_size, "full": "full"}

    def _rate(self, client: int, size: BatchSize) -> float:
        return 1.0 if size == "full" else min(1.0, size / self.examples[client])

    def gather(self, rows: Tensor) -> Sample:
        wanted, expected = rows[..., :-1], rows[..., -1]
        return Sample(super().gather(wanted.clamp(min=0)), wanted, expected)

    def pick(self, rows: Tensor) -> Sample:
        return self.gather(rows)

    def stackable(self, kinds: Sequence[Draw]) -> bool:
        return False

    def draw_stacked(
        self, kinds: Sequence[Draw], clients: Sequence[int], step: int, steps: int
    ) -> Draws:
        (client,) = clients  # the batches of clients differ in size
        count = {"round": steps, "anchor": 1, "full": 1}
        found = [
            self._sampled(kind, client, step, count[kind], self._rate(client, size))
            if kind in kinds
            else ()
            for kind, size in self._sizes().items()
        ]
        return Draws(*found)

    def _sampled(self, kind: str, client: int, step: int, steps: int, rate: float) -> Drawn:
        own, n = self.parts[client], self.examples[client]
        at = np.arange(step + 1, step + steps + 1)
        most = self.cap(n, rate)
        rows = np.full((1, steps, most + 1), -1)
        # the last column is the expected size of the batch, by which the sum is divided
        rows[..., -1] = max(1, round(rate * n))
        for k, number in enumerate(at):
            chosen = own if rate >= 1 else own[self._chosen(kind, client, int(number), n) < rate]
            if len(chosen) > most:
                raise FafedError(
                    f"client {client}, step {number}: {len(chosen)} examples were drawn, the batch "
                    f"holds {most}. This is very unlikely: start the run with another seed"
                )
            rows[0, k, : len(chosen)] = chosen
        key = randomness.keys(f"masks {kind}", self.seed, np.asarray([[client]]), at)
        fresh = torch.ones(1, steps, dtype=torch.bool)
        here = tree.leaves(self.pool)[0].device
        parts = torch.from_numpy(rows), randomness.tensor(key), fresh
        return Drawn(*(part.to(here) for part in parts))

    def _chosen(self, kind: str, client: int, number: int, n: int) -> Any:
        places: Indices = np.arange(n)
        return randomness.uniform(
            randomness.keys(f"poisson {kind}", self.seed, client, number, places)
        )
