"""Walks of q local steps, one batch each, which some engines make at once.

Where the gradients are computed in C, so are these steps (kernels/fused_steps.c): one client after
another, whose vectors stay in the cache meanwhile. An engine offers that as methods of its `grad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fafed.core.algorithm import Grad
from fafed.core.batch import Batches
from fafed.core.vectors import step

Rates = Sequence[float | Tensor]  # one for each step


class Tracked(NamedTuple):
    """Where a walk that keeps an estimate of the gradient stands."""

    x: Tensor
    before: Tensor  # the point before x
    m: Tensor  # the estimate
    v: Tensor  # the second moment


class Settings(NamedTuple):
    """Of the steps of such a walk."""

    rates: Rates
    keeps: Rates  # how much of the estimate's error is kept
    beta: float
    A: Tensor | float  # a vector, or 1: then nothing is collected in v


def descend(
    grad: Grad, x: Tensor, rates: Rates, batches: Batches, correction: Tensor | None = None
) -> Tensor:
    """x <- x - rate (g(x) + correction)."""
    at_once = getattr(grad, "descend", None)
    found: Tensor | None = at_once(x, rates, batches, correction) if at_once else None
    if found is not None:
        return found
    for rate, batch in zip(rates, batches, strict=True):
        g = grad(x, batch)
        x = step(x, rate, g if correction is None else g + correction)
    return x


def track(
    grad: Grad, start: Tracked, settings: Settings, batches: Batches, *, keep_x: bool
) -> Tracked | None:
    """FAFED's steps (algorithms/fafed.py) from here, if the engine makes them at once. Unless it is
    to be kept, the last x is empty."""
    at_once = getattr(grad, "track", None)
    return at_once(start, settings, batches, keep_x) if at_once else None
