"""The gradient that an algorithm calls, and local steps with it.

The steps here are the plain ones, one batch after another. A back end may replace them by faster
ones that give the same numbers up to rounding (engines/backends/native.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.core.batch import Batch, Batches
from fafed.core.vectors import scaled_step, step

Rates = Sequence[float | Tensor]  # one for each step


class StormPoint(NamedTuple):
    """The state of steps with a STORM estimate of the gradient."""

    x: Tensor
    before: Tensor  # the point before x
    m: Tensor  # the estimate
    v: Tensor  # the second moment


class StormSettings(NamedTuple):
    """The settings of these steps."""

    rates: Rates
    keeps: Rates  # the factor of m - old in each step, 1 - alpha
    beta: float
    A: Tensor | float  # the scale: a vector, or 1; with 1, v is not updated


class Grad(ABC):
    """The gradient of one client's objective at x on a batch."""

    @abstractmethod
    def __call__(self, x: Tensor, batch: Batch) -> Tensor: ...

    def sgd_steps(
        self, x: Tensor, rates: Rates, batches: Batches, correction: Tensor | None = None
    ) -> Tensor:
        """x <- x - rate (g(x) + correction), once for each batch."""
        for rate, batch in zip(rates, batches, strict=True):
            g = self(x, batch)
            x = step(x, rate, g if correction is None else g + correction)
        return x

    def storm_steps(
        self, start: StormPoint, settings: StormSettings, batches: Batches, *, keep_x: bool
    ) -> StormPoint:
        """The local steps of FAFED (algorithms/fafed.py), once for each batch. The last x may be
        empty if it is not needed."""
        x, before, m, v = start
        rates, keeps, beta, A = settings
        for rate, keep, batch in zip(rates, keeps, batches, strict=True):
            g = self(x, batch)
            m = self.storm_estimate(g, keep, m, self(before, batch))
            v = self.ema_of_squares(v, beta, g) if isinstance(A, Tensor) else v
            before, x = x, scaled_step(x, rate, m, A)
        return StormPoint(x, before, m, v)

    def storm_estimate(self, g: Tensor, keep: float | Tensor, m: Tensor, old: Tensor) -> Tensor:
        """g + keep (m - old): the STORM estimate. g is the gradient at the new point, old at the
        old point."""
        return step(g, -keep, m - old)

    def ema_of_squares(self, v: Tensor, beta: float, g: Tensor) -> Tensor:
        """beta v + (1 - beta) g^2."""
        return torch.addcmul(beta * v, g, g, value=1 - beta)


class PlainGrad(Grad):
    """A function of (x, batch) as a gradient."""

    def __init__(self, function: Callable[[Tensor, Batch], Tensor]) -> None:
        self.function = function

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        return self.function(x, batch)


def combined_storm_steps(
    difference: Callable[[Tensor, Tensor, float | Tensor, Batch], Tensor],
    start: StormPoint,
    settings: StormSettings,
    batches: Batches,
) -> StormPoint:
    """The same steps for gradients that are paid for by the query, such as private ones. A step
    asks once, for g(x) - keep g(before). From this follows m, and v collects the squares of m."""
    x, before, m, v = start
    rates, keeps, beta, A = settings
    for rate, keep, batch in zip(rates, keeps, batches, strict=True):
        m = difference(x, before, keep, batch) + keep * m
        if isinstance(A, Tensor):
            v = torch.addcmul(beta * v, m, m, value=1 - beta)
        before, x = x, scaled_step(x, rate, m, A)
    return StormPoint(x, before, m, v)


zero_grad = PlainGrad(lambda x, batch: torch.zeros_like(x))  # to find the shape of a message
