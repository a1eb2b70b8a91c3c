"""Step sizes: small frozen dataclasses called with the step t.

t = 0 is the opening step of FAFED and STEM. t = 1, 2, ... are the local steps. `at(value, t)` reads
a number or a schedule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from fafed.core.plain import number, plain
from fafed.errors import ConfigError


class Schedule(ABC):
    """A positive number for every step."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]  # every subclass has them

    @abstractmethod
    def __call__(self, t: Tensor) -> Tensor: ...

    def __post_init__(self) -> None:
        for f in fields(self):
            value = plain(getattr(self, f.name))
            object.__setattr__(self, f.name, value)  # a subclass may be frozen
            if f.type in ("int", "float") and not (number(value) and value > 0):
                raise ConfigError(
                    f"{type(self).__name__}.{f.name} must be a number > 0, got {value!r}: "
                    "every constant of a step-size schedule is positive"
                )


Rate = float | Schedule


def at(rate: Rate, t: Tensor) -> float | Tensor:
    return rate(t) if isinstance(rate, Schedule) else rate


def along(rate: Rate, t: Tensor, q: int) -> list[float | Tensor]:
    """The step sizes of the q steps after step t."""
    return [at(rate, t + k) for k in range(1, q + 1)]


def _real(t: Tensor | int) -> Tensor:
    # always float64: t ** (1/3) in float32 would be too inexact for float64 runs
    return torch.as_tensor(t).to(torch.float64)


@dataclass(frozen=True)
class Power(Schedule):
    """kappa / (w + u)^exponent, where u counts steps, rounds or epochs before step t.

    `every` is the unit of u in steps: q for rounds, the number of batches in a client's data for
    epochs (as in the paper's language model). Then u = floor((t - 1) / every): 0 for the first
    `every` steps, 1 for the next, and so on. The opening step t = 0 has u = 0. With `every` = 1 the
    step itself counts, as in the paper: u = t.
    """

    kappa: float = 1.0
    w: float = 1.0
    every: int = 1
    exponent: float = 1 / 3

    def __call__(self, t: Tensor) -> Tensor:
        u = torch.as_tensor(t)
        if self.every > 1:
            u = (u - 1).clamp(min=0) // self.every
        return self.kappa / (self.w + _real(u)) ** self.exponent


@dataclass(frozen=True)
class TheoryStep(Schedule):
    """eta_t of Theorem 2: rho hbar / (w_t + t)^(1/3), hbar = N^(2/3)/L.

    Since w_t + t = max(t + 3/2, 1728 q^3 N^2), the step is rho/(12 L q) until t is huge.
    """

    L: float
    N: int
    q: int
    rho: float = 0.01

    def __call__(self, t: Tensor) -> Tensor:
        reach = torch.clamp(_real(t) + 1.5, min=1728.0 * self.q**3 * self.N**2)
        hbar = float(self.N ** (2 / 3)) / self.L
        return self.rho * hbar / reach ** (1 / 3)


@dataclass(frozen=True)
class TheoryMomentum(Schedule):
    """alpha_t of Theorem 2: min(1, c eta_{t-1}^2), with the appendix's c."""

    L: float
    N: int
    q: int
    b: int
    rho: float = 0.01

    def __call__(self, t: Tensor) -> Tensor:
        eta = TheoryStep(self.L, self.N, self.q, self.rho)(torch.as_tensor(t) - 1)
        hbar = self.N ** (2 / 3) / self.L
        c = 1 / (12 * self.L * self.q * hbar**3 * self.rho**2)
        c += 60 * self.L**2 / (self.b * self.N * self.rho**2)
        return torch.clamp(c * eta**2, max=1.0)


@dataclass(frozen=True)
class StemStep(Schedule):
    """STEM's own step: kappa / (w_t + sigma^2 t)^(1/3), never above 1/(16 L q).

    STEM's paper counts from 1, and fafed from 0, so the paper's t is t + 1 here.
    """

    L: float
    N: int
    q: int
    b: int
    sigma: float = 1.0

    @property
    def kappa(self) -> float:
        return float((self.b * self.N * self.sigma) ** (2 / 3) / self.L)

    def __call__(self, t: Tensor) -> Tensor:
        own = self.sigma**2 * (_real(t) + 1)
        floor = (16 * self.L * self.q * self.kappa) ** 3
        return self.kappa / torch.clamp(own + 2 * self.sigma**2, min=floor) ** (1 / 3)


@dataclass(frozen=True)
class StemMomentum(Schedule):
    """STEM's own momentum: a_{t+1} = min(1, c eta_t^2)."""

    L: float
    N: int
    q: int
    b: int
    sigma: float = 1.0

    def __call__(self, t: Tensor) -> Tensor:
        step = StemStep(self.L, self.N, self.q, self.b, self.sigma)
        c = 64 * self.L**2 / (self.b * self.N)
        c += self.sigma**2 / (24 * step.kappa**3 * self.L * self.q)
        return torch.clamp(c * step(torch.as_tensor(t) - 1) ** 2, max=1.0)
