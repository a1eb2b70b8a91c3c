"""The measurements of `rates`. Each is a task that can run in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fafed.algorithms import FAFED, STEM, FedAvg
from fafed.core.algorithm import AnyAlgorithm
from fafed.experiments.grid import follow
from studies.theory.drift import MeanPrevious
from studies.theory.lab import Lab, PerLane, one_thread
from studies.theory.problems import Robust

Array = NDArray[np.float64]
METHODS = ("FedAvg", "STEM", "FAFED")
N, Q = 4, 4  # clients and local steps unless stated
FITTED = 5  # powers of T are fitted to this many horizons, the longest ones


def algorithm(method: str, eta: Any, alpha: Any, rho: float = 0.1) -> AnyAlgorithm:
    match method:
        case "FedAvg":
            return FedAvg(eta)
        case "STEM":
            return STEM(eta, alpha)
        case _:
            return FAFED(eta, alpha, beta=0.9, rho=rho)


def theory_rates(method: str, N: int, T: Any) -> tuple[Array, Array]:
    """eta and alpha with the theory's powers of N and T; the constants were picked by hand."""
    T = np.asarray(T, float)
    if method == "FedAvg":
        return np.sqrt(N / T), np.ones_like(T)
    eta = 0.5 * N ** (2 / 3) * T ** (-1 / 3)
    alpha = np.minimum(1, 8 * eta**2 / N)
    return eta * (0.35 if method == "FAFED" else 1.0), alpha


class Task(ABC):
    @abstractmethod
    def run(self) -> Array: ...

    @property
    @abstractmethod
    def cost(self) -> float:
        """Roughly proportional to its time."""


@dataclass(frozen=True)
class Horizons(Task):
    """Protocol A: the theory's schedule for several horizons T.

    Result (2, len(Ts), seeds): means over t = 1..T of |grad f|^2 and of |grad f|, at the mean of
    the clients' iterates.
    """

    method: str
    N: int
    Ts: tuple[int, ...]
    q: int
    seeds: int
    size: float = 0.3  # of the offsets b_i
    mean_previous: bool = False  # STEM only

    def run(self) -> Array:
        eta, alpha = theory_rates(self.method, self.N, self.Ts)
        problem = Robust(clients=self.N, size=self.size)
        chosen = algorithm(self.method, PerLane(eta), PerLane(alpha))
        if self.mean_previous:
            chosen = MeanPrevious(PerLane(eta), PerLane(alpha), adaptivity="identity")
        lab = Lab(chosen, problem, q=self.q, lanes=(len(self.Ts),), seeds=range(self.seeds))
        total = torch.zeros(2, len(self.Ts), self.seeds, dtype=torch.float64)
        found = torch.empty_like(total)
        for rounds in range(1, -(-max(self.Ts) // self.q) + 1):
            square = problem.full(lab.round().points).square().sum(-1)
            total += torch.stack([square.sum(0), square.sqrt().sum(0)])
            for k, T in enumerate(self.Ts):
                if rounds == -(-T // self.q):
                    found[:, k] = total[:, k] / (rounds * self.q)
        return found.numpy()

    @property
    def cost(self) -> float:
        width = 1 + len(self.Ts) * self.seeds * self.N / 1000
        return (1 if self.method == "FedAvg" else 2.3) * max(self.Ts) * width


@dataclass(frozen=True)
class Grid(Task):
    """Protocol B: a grid of constant eta and alpha. Result (len(Ts), etas, alphas, seeds)."""

    method: str
    etas: tuple[float, ...]
    alphas: tuple[float, ...]
    Ts: tuple[int, ...]
    seeds: int

    def run(self) -> Array:
        problem = Robust(offsets="gaussian")
        lanes = (len(self.etas), len(self.alphas))
        chosen = algorithm(self.method, PerLane(self.etas, 1), PerLane(self.alphas))
        lab = Lab(chosen, problem, q=Q, lanes=lanes, seeds=range(self.seeds))
        total = torch.zeros(*lanes, self.seeds, dtype=torch.float64)
        found = []
        for rounds in range(1, max(self.Ts) // Q + 1):
            total += problem.full(lab.round().points).square().sum((0, -1))
            if rounds * Q in self.Ts:
                found.append(total / (rounds * Q))
        return torch.stack(found).numpy()

    @property
    def cost(self) -> float:
        return 2.3 * max(self.Ts) * (1 + len(self.etas) * len(self.alphas) * self.seeds / 250)


@dataclass(frozen=True)
class Scaling(Task):
    """The adaptive matrix on badly scaled problems. Result (etas, alphas, seeds): final loss."""

    method: str
    smallest: float
    rotated: bool
    e1_scaled: bool
    etas: tuple[float, ...]
    alphas: tuple[float, ...]
    T: int
    seeds: int

    def run(self) -> Array:
        problem = Robust(
            offsets="gaussian",
            smallest=self.smallest,
            rotated=self.rotated,
            e1_scaled=self.e1_scaled,
        )
        lanes = (len(self.etas), len(self.alphas))
        chosen = algorithm(self.method, PerLane(self.etas, 1), PerLane(self.alphas), rho=0.01)
        start = problem.start(0) if self.smallest < 1 else torch.full((problem.d,), 2.0).double()
        lab = Lab(chosen, problem, q=Q, lanes=lanes, seeds=range(self.seeds), start=start)
        for _ in range(self.T // Q):
            shared = lab.round().shared
        return problem.value(shared.x[..., 0, :]).numpy()

    @property
    def cost(self) -> float:
        return 2.3 * self.T * (1 + len(self.etas) * len(self.alphas) * self.seeds / 250)


def carry_out(
    tasks: Sequence[Task], jobs: int, tick: Callable[[], None] = lambda: None
) -> dict[Task, Array]:
    """Every task's result, computed on `jobs` processes; `tick` is called after each."""
    order = sorted(dict.fromkeys(tasks), key=lambda task: -task.cost)
    found = {}
    for task, result in zip(order, _results(order, jobs), strict=True):
        found[task] = result
        tick()
    return found


def _results(tasks: Sequence[Task], jobs: int) -> Iterator[Array]:
    if jobs == 1:
        yield from (_run(task) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=follow, initargs=(os.getpid(),)
    ) as pool:
        yield from pool.map(_run, tasks)


@one_thread()
def _run(task: Task) -> Array:
    return task.run()
