"""Poisson sampling: each example is in a batch with the same probability, on its own.

This is what the accounting of differential privacy assumes. Batches differ in size. In a draw they
are filled up to a cap with rows that do not count. Whether an example is drawn is a function of
(seed, client, step, example), so one example more or less changes no other draw.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fafed.core import randomness
from fafed.core.batch import Batch, Draw
from fafed.data.sources.base import ClientBatches, Drawn, Draws, Indices
from fafed.data.sources.examples import BatchSize, Examples
from fafed.errors import FafedError

Uniform = Callable[[str, int], NDArray[np.float64]]  # a purpose and a count -> numbers in [0, 1)
AT_ONCE = 2**14  # numbers that decide samples: so many stay in the cache


class Sample(NamedTuple):
    """The data of a batch."""

    data: Any
    rows: Tensor  # of the pool
    expected: Tensor  # the expected number of examples


def sampling_rates(
    examples: int, batch_size: BatchSize, anchor_size: BatchSize
) -> dict[str, float]:
    """Kind of batch -> the probability that one of so many examples is in it."""
    sizes: dict[str, BatchSize] = {"round": batch_size, "anchor": anchor_size, "full": "full"}
    return {kind: _rate(examples, size) for kind, size in sizes.items()}


def _rate(examples: int, size: BatchSize) -> float:
    return 1.0 if size == "full" else min(1.0, size / examples)


class _Sampled(ClientBatches):
    """Batches that count for their expected size. The actual size is nobody's business."""

    def _batch(self, data: Any, drawn: Drawn) -> Batch:
        return super()._batch(data, drawn)._replace(examples=int(drawn.rows[-1]))


class Poisson(Examples):
    """A `Source` of Poisson samples from the same examples."""

    uniform: Uniform | None = None  # draws the samples; None: they are a function of the seed

    def __init__(self, examples: Examples, cap: Callable[[int, float], int]) -> None:
        """cap: the most rows of a batch, from the number of examples and their sampling rate."""
        self.__dict__ |= examples.__dict__  # the data stays where it is
        self.cap = cap

    def rates(self, client: int) -> dict[str, float]:
        """Kind of batch -> the probability that an example is in it."""
        return sampling_rates(self.examples[client], self.batch_size, self.anchor_size)

    def drawn_by(self, uniform: Uniform) -> Poisson:
        """The same source, with samples that these numbers decide."""
        other = copy.copy(self)
        other.uniform = uniform
        return other

    def _sizes(self) -> dict[str, BatchSize]:
        return {"round": self.batch_size, "anchor": self.anchor_size, "full": "full"}

    def _rate(self, client: int, size: BatchSize) -> float:
        return _rate(self.examples[client], size)

    def gather(self, drawn: Drawn) -> Sample:
        rows, expected = drawn.rows[:-1], drawn.rows[-1]
        rows = rows[: int((rows >= 0).sum())]  # what fills up the batch is at its end
        data = super().gather(drawn._replace(rows=rows))
        return Sample(data, rows.to(self.device), expected.to(self.device))

    def pick(self, drawn: Drawn) -> Sample:
        return self.gather(drawn)

    def batches(self, draws: Draws) -> ClientBatches:
        return _Sampled(self.gather, draws)

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
        everything: Iterator[Indices] = itertools.repeat(own, steps)
        drawn = (own[numbers < rate] for numbers in self._numbers(kind, client, at, n))
        for k, chosen in enumerate(everything if rate >= 1 else drawn):
            if len(chosen) > most:
                raise FafedError(
                    f"client {client}, step {at[k]}: {len(chosen)} examples were drawn, the batch "
                    f"holds {most}. This is very unlikely: start the run with another seed"
                )
            rows[0, k, : len(chosen)] = chosen
        key = randomness.keys(f"masks {kind}", self.seed, np.asarray([[client]]), at)
        fresh = torch.ones(1, steps, dtype=torch.bool)
        return Drawn(
            torch.from_numpy(rows).to(self.rows_device),
            randomness.tensor(key).to(self.device),
            fresh.to(self.device),
        )

    def _numbers(
        self, kind: str, client: int, at: Indices, n: int
    ) -> Iterator[NDArray[np.float64]]:
        """For each of these steps a number in [0, 1) for each example."""
        purpose = f"poisson {kind}"
        if self.uniform is not None:
            yield from (self.uniform(f"{purpose} {client} {number}", n) for number in at)
            return
        places, width = np.arange(n), max(1, AT_ONCE // n)
        for start in range(0, len(at), width):
            some = at[start : start + width, None]
            yield from randomness.uniform(randomness.keys(purpose, self.seed, client, some, places))
