"""The lab engine: many independent runs of one algorithm side by side.

The library's algorithms are element-wise where the laboratory uses them (FAFED, STEM, FedAvg and
naive adaptive FedAvg). So their own functions are handed whole blocks instead of vectors: what
the server holds has the shape (*lanes, seeds, 1, d), what the clients hold (*lanes, seeds, N, d).
A lane is one setting; settings that vary are `PerLane` schedules. A test proves that every run in
the block is the run that `fafed.training.loop.Run` makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, Exchange, RoundInfo
from fafed.core.batch import Batch
from fafed.core.gradient import Grad, PlainGrad
from fafed.core.schedules import Schedule
from studies.theory.problems import REAL, Problem

CHUNK = 512  # steps whose noise is drawn at once
_NONE = torch.zeros((), dtype=torch.int64)  # no dropout, no recurrent state


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: small blocks run faster, and the digits are the same on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class PerLane(Schedule):
    """A rate of its own for every lane, the same at all steps."""

    def __init__(self, values: Any, after: int = 0) -> None:
        """`after`: how many further dimensions of lanes there are behind those of `values`."""
        values = torch.as_tensor(values, dtype=REAL)
        seeds = clients = d = 1  # the value does not depend on these dimensions
        self.values: Tensor = values.reshape(*values.shape, *[1] * after, seeds, clients, d)

    def __call__(self, t: Tensor) -> Tensor:
        return self.values


class PerLaneDecaying(PerLane):
    """A rate of its own for every lane, divided by sqrt(t)."""

    def __call__(self, t: Tensor) -> Tensor:
        return self.values / t.to(REAL).sqrt()


class Round(NamedTuple):
    shared: Any
    points: Tensor  # (q, *lanes, seeds, d): the clients' mean at the start of each step


@dataclass(frozen=True)
class Steps:
    """One round's batches in the form that algorithms read; a batch's data is its noise."""

    noise: Sequence[Any]
    opening: Any = None

    def __iter__(self) -> Iterator[Batch]:
        return map(_batch, self.noise)

    def first(self, k: int) -> Steps:
        return Steps(self.noise[:k])

    def __len__(self) -> int:
        return len(self.noise)

    @property
    def anchor(self) -> Batch:
        return _batch(self.opening)

    @property
    def full(self) -> Batch:
        raise NotImplementedError("no algorithm of the laboratory looks at a whole shard")


def _batch(noise: Any) -> Batch:
    return Batch(noise, _NONE, _NONE)


class Lab:
    """A block of runs; `round()` makes one round of each."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        problem: Problem,
        *,
        q: int,
        lanes: tuple[int, ...] = (),
        seeds: Sequence[int] = (0,),
        start: Tensor | None = None,
    ) -> None:
        """`start`: x_0 of every lane, of the shape (*lanes, d), instead of the problem's."""
        self.algorithm = algorithm
        self.problem = problem
        self.q = q
        self.seeds = seeds
        if start is None:
            x = torch.stack([problem.start(seed) for seed in seeds])
        else:
            x = start.unsqueeze(-2)
        x = x.expand(*lanes, len(seeds), x.shape[-1]).unsqueeze(-2)
        self.shared = algorithm.init(x)
        self.grad = PlainGrad(lambda x, batch: problem.gradients(x, batch.data))
        self.local = algorithm.join(x.expand(*x.shape[:-2], problem.clients, x.shape[-1]))
        self.steps = 0
        self._opened = False
        self._drawn: list[Any] = []

    def open(self) -> None:
        """Make the opening, if the algorithm has one; the first round does so by itself."""
        if not self._opened:
            self._opened = True
            noise = self.problem.draw_anchor(self.seeds, self.q)
            for exchange in self.algorithm.opening():
                self._deliver(exchange, Steps((), noise), self.grad, 0)

    def batches(self) -> Steps:
        """The batches of the next round."""
        if len(self._drawn) < self.q:
            begin = self.steps + len(self._drawn)
            self._drawn += self.problem.draw(self.seeds, begin, max(self.q, CHUNK))
        return Steps(self._drawn[: self.q])

    def round(self) -> Round:
        self.open()
        visited: list[Tensor] = []
        seen: list[Any] = [None]

        def grad(x: Tensor, batch: Batch) -> Tensor:
            if batch is not seen[0]:  # the first evaluation on a batch is at the current point
                seen[0] = batch
                visited.append(x.mean(-2))
            return self.grad(x, batch)

        batches = self.batches()
        for exchange in self.algorithm.exchanges():
            self._deliver(exchange, batches, PlainGrad(grad), self.q)
        del self._drawn[: self.q]
        self.steps += self.q
        return Round(self.shared, torch.stack(visited))

    def _deliver(self, exchange: Exchange, batches: Steps, grad: Grad, steps: int) -> None:
        down = exchange.send(self.shared)
        self.local, message = exchange.client(grad, down, self.local, batches)
        self.shared = exchange.server(self.shared, mean(message), self.info(steps))

    def info(self, steps: int) -> RoundInfo:
        return RoundInfo(self.problem.clients, self.problem.clients, steps, 1.0)


def mean(message: Any) -> Any:
    """The mean over the clients."""
    return tree.map(lambda leaf: leaf.mean(-2, keepdim=True), message)
