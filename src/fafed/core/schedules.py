"""Step sizes: small frozen dataclasses called with the step t.

t = 0 is the opening step of FAFED and STEM. t = 1, 2, ... are the local steps. `at(value, t)` reads
a number, a schedule, or any other function of the number t.

`Linear` and `Cosine` fall over the whole run. The algorithm learns the length of the run before the
first round (`Algorithm.bind_run`) and tells it to them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, replace
from typing import ClassVar, Self

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

    def bound(self, steps: int) -> Self:
        """The same schedule for a run of so many steps."""
        return self


Rate = float | Schedule | Callable[[int], float]


def at(rate: Rate, t: Tensor) -> float | Tensor:
    """The rate of step t. A function that is not a `Schedule` is called with t as an integer, so it
    needs no torch."""
    if isinstance(rate, Schedule):
        return rate(t)
    if not callable(rate):
        return rate
    found = rate(int(t))
    try:
        value = float(found)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several numbers, too
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(
            f"the step size of step {int(t)} is {found!r}, given by {rate!r}: "
            "a schedule must return a finite number >= 0"
        )
    return value


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
class Step(Schedule):
    """kappa factor^u, where u counts whole periods of `every` steps before step t.

    The rate is kappa for the first `every` steps, kappa factor for the next, and so on.
    """

    kappa: float
    every: int
    factor: float = 0.1

    def __call__(self, t: Tensor) -> Tensor:
        u = (torch.as_tensor(t) - 1).clamp(min=0) // self.every
        return self.kappa * self.factor ** _real(u)


@dataclass(frozen=True)
class OverRun(Schedule):
    """Rises to `peak` and falls to `end` times `peak` over the run.

    With T steps, of which W = warmup T (rounded) warm up, and s = max(W, 1):
    step t <= s has peak t / s. In step t >= s, u = (t - s) / (T - s + 1) of the fall is over. So
    the peak is in step s, and `end` would be reached one step after the last. No step has the
    rate 0. The opening step t = 0 has the rate of step 1.

    T is the length of the run, or `over` steps. A run can be made longer later only if `over` says
    how long it may become: otherwise the step sizes of earlier rounds would change.
    """

    peak: float
    end: float = 0.0  # a share of the peak
    warmup: float = 0.0  # a share of the steps
    over: int | None = None  # steps; None: those of the run

    def __post_init__(self) -> None:
        name = type(self).__name__
        for f in fields(self):
            object.__setattr__(self, f.name, plain(getattr(self, f.name)))
        if not (number(self.peak) and self.peak > 0):
            raise ConfigError(
                f"{name}.peak must be > 0, got {self.peak!r}: it is the largest step size"
            )
        for key, value, what in (
            ("end", self.end, "the last step size as a share of the peak"),
            ("warmup", self.warmup, "the share of the steps that warm up"),
        ):
            if not (number(value) and 0 <= value < 1):
                raise ConfigError(f"{name}.{key} must be in [0, 1), got {value!r}: it is {what}")
        if self.over is not None and (not isinstance(self.over, int) or self.over < 1):
            raise ConfigError(
                f"{name}.over must be a number of steps >= 1 or None, got {self.over!r}: "
                "None takes all steps of the run"
            )

    def bound(self, steps: int) -> Self:
        if self.over is None:
            return replace(self, over=steps)
        if steps > self.over and not self.end:
            raise ConfigError(
                f"{type(self).__name__}.over is {self.over} steps, the run has {steps} (rounds "
                "times local_steps): the step size would be 0 after that; make over at least as "
                "large, or give an end > 0"
            )
        return self

    def __call__(self, t: Tensor) -> Tensor:
        if self.over is None:
            raise ConfigError(
                f"{self} does not know how long the run is: give it over= a number of steps, or "
                "call bind_run(rounds, local_steps) of the algorithm first"
            )
        now = _real(t).clamp(min=1)
        s = max(round(self.warmup * self.over), 1)
        u = ((now - s) / (self.over - s + 1)).clamp(0, 1)
        risen = (now / s).clamp(max=1)
        return self.peak * risen * (self.end + (1 - self.end) * self._left(u))

    @abstractmethod
    def _left(self, u: Tensor) -> Tensor:
        """What is left of the fall after the share u of it: 1 at u = 0, and 0 at u = 1."""


class Linear(OverRun):
    """A straight fall. The rest is said in `OverRun`."""

    def _left(self, u: Tensor) -> Tensor:
        return 1 - u


class Cosine(OverRun):
    """A fall along half a cosine. The rest is said in `OverRun`."""

    def _left(self, u: Tensor) -> Tensor:
        return (1 + torch.cos(math.pi * u)) / 2


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


NAMED: dict[str, type[Schedule]] = {  # as experiment files name them
    "linear": Linear,
    "cosine": Cosine,
    "step": Step,
    "power": Power,
    "theory-step": TheoryStep,
    "theory-momentum": TheoryMomentum,
    "stem-step": StemStep,
    "stem-momentum": StemMomentum,
}
