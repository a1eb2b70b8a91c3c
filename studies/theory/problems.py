"""The problems of the laboratory, each in two forms that a test proves equal: for the library's
engine (`run`), and for many runs side by side (`gradients`, see lab.py).

All are small, in float64, and their full gradients are known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fafed.core import randomness
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.batch import Draw
from fafed.data.sources.base import Drawn, Draws, Source
from fafed.data.sources.examples import Examples
from fafed.objectives.function import Function
from fafed.training.build import build
from fafed.training.loop import Run

REAL = torch.float64


class Problem(ABC):
    """N client functions f_i of x in R^d; f is their mean."""

    clients: int

    @abstractmethod
    def start(self, seed: int) -> Tensor:
        """x_0."""

    @abstractmethod
    def gradients(self, x: Tensor, noise: Any) -> Tensor:
        """Client i's gradient at row i of x, for x of shape (..., N or 1, d)."""

    @abstractmethod
    def full(self, x: Tensor) -> Tensor:
        """The gradient of f at x, for x of shape (..., d)."""

    def draw(self, seeds: Sequence[int], step: int, steps: int) -> list[Any]:
        """The noise of the local steps `step`+1 .. `step`+`steps`; None if there is none."""
        return [None] * steps

    def draw_anchor(self, seeds: Sequence[int], size: int) -> Any:
        """The noise of the opening's batch."""
        return None

    @abstractmethod
    def loss(self, x: Tensor, data: Any) -> Tensor:
        """One client's loss on a batch, as the library sees it."""

    @abstractmethod
    def source(self, seed: int, anchor_size: int) -> Source: ...

    def run(
        self,
        algorithm: AnyAlgorithm,
        *,
        rounds: int,
        q: int,
        seed: int = 0,
        start: Tensor | None = None,
        engine: str = "loop",
    ) -> Run:
        """The problem on the library's own engine. The opening's batch is as large as q batches."""
        x0 = self.start(seed) if start is None else start
        source = self.source(seed, q)
        objective = Function(self.loss, x0)
        return build(algorithm, objective, source, rounds=rounds, local_steps=q, engine=engine)


def _one_example_each(*columns: Sequence[float]) -> Examples:
    pool = tuple(torch.tensor(column, dtype=REAL) for column in columns)
    clients = len(columns[0])
    return Examples(pool, np.split(np.arange(clients), clients), batch_size="full")


@dataclass(frozen=True)
class Counterexample(Problem):
    """Theorem 1: gradients 6 c, -2 c and -2 c with c = clip(x, -1, 1), so f has its minimum at 0.

    Two clients of three point away from it, less steeply than the third points to it. Outside
    [-1, 1] the losses go on as straight lines, 6|x| - 3 and -2|x| + 1.
    """

    x0: float = 10.0
    slopes: tuple[float, ...] = (6.0, -2.0, -2.0)

    @property
    def clients(self) -> int:  # type: ignore[override]
        return len(self.slopes)

    def start(self, seed: int = 0) -> Tensor:
        return torch.tensor([self.x0], dtype=REAL)

    @cached_property
    def _slopes(self) -> Tensor:
        return torch.tensor(self.slopes, dtype=REAL)[:, None]

    def gradients(self, x: Tensor, noise: Any) -> Tensor:
        return self._slopes * x.clamp(-1, 1)

    def full(self, x: Tensor) -> Tensor:
        return x.clamp(-1, 1) * self._slopes.mean()

    def loss(self, x: Tensor, data: Any) -> Tensor:
        slope = data[0].mean()
        inside, outside = slope * x**2 / 2, slope * (x.abs() - 0.5)
        return torch.where(x.abs() <= 1, inside, outside).sum()

    def source(self, seed: int, anchor_size: int) -> Source:
        return _one_example_each(self.slopes)


@dataclass(frozen=True)
class Quadratics(Problem):
    """f_i(x) = a_i (x - b_i)^2 / 2, exact gradients, d = 1."""

    a: tuple[float, ...] = (1.0, 4.0)
    b: tuple[float, ...] = (0.0, 1.0)
    x0: float = 0.3

    @property
    def clients(self) -> int:  # type: ignore[override]
        return len(self.a)

    @property
    def best(self) -> float:
        return sum(a * b for a, b in zip(self.a, self.b, strict=True)) / sum(self.a)

    def start(self, seed: int = 0) -> Tensor:
        return torch.tensor([self.x0], dtype=REAL)

    @cached_property
    def _ab(self) -> tuple[Tensor, Tensor]:
        a, b = (torch.tensor(column, dtype=REAL)[:, None] for column in (self.a, self.b))
        return a, b

    def gradients(self, x: Tensor, noise: Any) -> Tensor:
        a, b = self._ab
        return a * (x - b)

    def full(self, x: Tensor) -> Tensor:
        a, b = self._ab
        return (a * (x.unsqueeze(-2) - b)).mean(-2)

    def loss(self, x: Tensor, data: tuple[Tensor, Tensor]) -> Tensor:
        a, b = data
        return (a * (x - b) ** 2 / 2).sum()

    def source(self, seed: int, anchor_size: int) -> Source:
        return _one_example_each(self.a, self.b)


@dataclass(frozen=True)
class Robust(Problem):
    """A non-convex problem with noise that depends on x.

        f_i(x) = sum_j phi(z_j),  z = S U x - b_i,  phi(z) = z^2 / (1 + z^2)
        g_i(x) = (S U)^T (phi'(z) + e2 sin z) + e1         e1, e2: independent random signs

    U is a fixed rotation, S a diagonal of scales between `smallest` and 1. The noise sin(z) e2
    matters: were all noise additive, a difference of two gradients on one sample would be free
    of it, and methods built on such differences would look better than they are.

    offsets: "opposed", b_i = +-size in turn, so that f is the same for every even N; or
    "gaussian", centred normal draws of that size.
    e1_scaled: e1 is multiplied by (S U)^T, too: then small scales carry little noise.
    noise: a factor of both; 0 makes gradients exact.
    """

    clients: int = 4
    d: int = 16
    size: float = 0.3
    offsets: str = "opposed"
    smallest: float = 1.0
    rotated: bool = True
    e1_scaled: bool = False
    noise: float = 1.0

    def start(self, seed: int) -> Tensor:
        if self.smallest == 1:  # |x_j| = 2
            return 2 * _signs(randomness.keys("theory start", seed), self.d)
        x = 2 / self._scales  # every z_j is about 2
        return x @ self._rotation if self.rotated else x

    # The parts, drawn once for all seeds.

    @cached_property
    def _rotation(self) -> Tensor:
        place = np.arange(self.d)
        normal = _normal("theory rotation", place[:, None], place)
        q, r = np.linalg.qr(normal)
        return torch.from_numpy(q * np.sign(np.diag(r)))

    @cached_property
    def _turn(self) -> Tensor:
        return self._rotation.T.contiguous()

    @cached_property
    def _scales(self) -> Tensor:
        return torch.from_numpy(np.geomspace(self.smallest, 1.0, self.d))

    @cached_property
    def _offsets(self) -> Tensor:
        if self.offsets == "opposed":
            sign = torch.tensor([1.0, -1.0], dtype=REAL).repeat(self.clients)[: self.clients]
            return self.size * sign[:, None].expand(self.clients, self.d).contiguous()
        drawn = _normal("theory offsets", np.arange(self.clients)[:, None], np.arange(self.d))
        return torch.from_numpy(self.size * (drawn - drawn.mean(0)))

    @cached_property
    def _kinds(self) -> tuple[Tensor, Tensor]:
        """The different offsets and their shares. Opposed offsets have two, whatever N is."""
        kinds, counts = torch.unique(self._offsets, dim=0, return_counts=True)
        return kinds, (counts.to(REAL) / self.clients)[:, None]

    def _inner(self, x: Tensor) -> Tensor:
        """S U x."""
        x = x @ self._turn if self.rotated else x
        return x if self.smallest == 1 else self._scales * x

    def _outer(self, g: Tensor) -> Tensor:
        """(S U)^T g."""
        g = g if self.smallest == 1 else self._scales * g
        return g @ self._rotation if self.rotated else g

    # Many runs side by side.

    def gradients(self, x: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
        e1, e2 = noise
        z = self._inner(x) - self._offsets
        square = (z * z).add_(1).square_()  # in place: this is where the laboratory's time goes
        g = torch.sin(z).mul_(e2).addcdiv_(z, square, value=2)  # phi'(z) = 2 z / (1 + z^2)^2
        return self._outer(g.add_(e1)) if self.e1_scaled else self._outer(g).add_(e1)

    def full(self, x: Tensor) -> Tensor:
        kinds, share = self._kinds
        z = self._inner(x).unsqueeze(-2) - kinds
        return self._outer((share * (2 * z / (1 + z * z) ** 2)).sum(-2))

    def value(self, x: Tensor) -> Tensor:
        """f at x, for x of shape (..., d)."""
        kinds, share = self._kinds
        z = self._inner(x).unsqueeze(-2) - kinds
        return (share * (z * z / (1 + z * z))).sum((-1, -2))

    def exact(self, x: Tensor) -> Tensor:
        """Client i's gradient without noise at row i of x."""
        zero = torch.zeros((), dtype=REAL)
        return self.gradients(x, (zero, zero))

    def draw(self, seeds: Sequence[int], step: int, steps: int) -> list[Any]:
        count = np.arange(step + 1, step + steps + 1)[:, None, None]
        e = self._noise(self._keys("step", np.asarray(seeds)[:, None], count))
        first, second = e[..., : self.d].contiguous(), e[..., self.d :].contiguous()
        return list(zip(first, second, strict=True))

    def draw_anchor(self, seeds: Sequence[int], size: int) -> Any:
        count = np.arange(size)[:, None, None]
        e = self._noise(self._keys("anchor", np.asarray(seeds)[:, None], count))
        e = e.mean(0)  # gradients are linear in the noise
        return e[..., : self.d], e[..., self.d :]

    def _noise(self, key: randomness.Keys) -> Tensor:
        """e1 and e2, joined along the last dimension."""
        return _signs(key, 2 * self.d) * self.noise

    def _keys(self, kind: str, seed: Any, count: Any, client: Any = None) -> randomness.Keys:
        client = np.arange(self.clients) if client is None else client
        return randomness.keys(f"theory {kind}", seed, client, count)

    # One run on the library's engine.

    def loss(self, x: Tensor, data: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        offset, e1, e2 = data
        y = self._inner(x)
        z = y - offset
        f = z**2 / (1 + z**2) - e2 * torch.cos(z) + e1 * (y if self.e1_scaled else x)
        return f.sum(-1).mean()

    def source(self, seed: int, anchor_size: int) -> Source:
        return Signs(self, seed, anchor_size)


class Signs(Source):
    """The clients of `Robust` as a data source.

    A row is a pair (client, key). The bits of the key are the random signs of the batch.
    """

    def __init__(self, problem: Robust, seed: int, anchor_size: int) -> None:
        self.problem = problem
        self.seed = seed
        self.anchor_size = anchor_size
        self.examples = (1,) * problem.clients

    @property
    def units(self) -> int:
        return 1

    @property
    def epoch_steps(self) -> int:
        return 1

    def draw(self, kinds: Sequence[Draw], client: int, step: int, steps: int) -> Draws:
        count = np.arange(step + 1, step + steps + 1)
        anchor = np.arange(self.anchor_size)
        return Draws(
            round=self._drawn("step", client, count[:, None]) if "round" in kinds else (),
            anchor=self._drawn("anchor", client, anchor[None]) if "anchor" in kinds else (),
            full=(),
        )

    def _drawn(self, kind: str, client: int, count: NDArray[np.int64]) -> Drawn:
        key = randomness.tensor(self.problem._keys(kind, self.seed, count, client))
        rows = torch.stack([torch.full_like(key, client), key], -1)
        return Drawn(rows, key[:, 0], torch.ones(len(key), dtype=torch.bool))

    def gather(self, drawn: Drawn) -> Any:
        client, key = drawn.rows[..., 0], drawn.rows[..., 1]
        bits = (key[..., None] >> torch.arange(2 * self.problem.d)) & 1
        d, e = self.problem.d, self.problem.noise * (2 * bits - 1).to(REAL)
        return self.problem._offsets[client], e[..., :d], e[..., d:]

    def stackable(self, kinds: Sequence[Draw]) -> bool:
        return True

    def to(self, device: torch.device, dtype: torch.dtype) -> Signs:
        return self


def _signs(key: randomness.Keys, count: int) -> Tensor:
    """The lowest `count` bits of each key as -1 or 1."""
    octets = np.ascontiguousarray(key).astype("<u8").view(np.uint8).reshape(*key.shape, 8)
    bits = np.unpackbits(octets, axis=-1, count=count, bitorder="little")
    return torch.from_numpy(2.0 * bits - 1.0)


def _normal(purpose: str, *numbers: Any) -> NDArray[np.float64]:
    u, v = (randomness.uniform(randomness.keys(f"{purpose} {k}", *numbers)) for k in (1, 2))
    return np.asarray(np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v))
