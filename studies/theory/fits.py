"""Exponents of power laws, with intervals from a bootstrap over seeds.

The seeds are the only independent draws: the same seed at two horizons shares its start and its
noise. So whole seeds are resampled, the mean over seeds and the fit are made anew, and the
interval is between the 2.5th and the 97.5th percentile of the exponents. With few seeds such
intervals are somewhat too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fafed.core import randomness

Array = NDArray[np.float64]
RESAMPLES = 2000


class Estimate(NamedTuple):
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def slope(x: Sequence[float] | Array, y: Array) -> Array:
    """The least-squares slope of log y against log x, along the first dimension of y."""
    u = np.log(np.asarray(x, float))
    u = u - u.mean(0)
    v = np.log(np.asarray(y))
    u = u.reshape(u.shape + (1,) * (v.ndim - u.ndim))
    return np.asarray((u * v).sum(0) / (u * u).sum(0))


def resampled(seeds: int) -> NDArray[np.int64]:
    """The seeds of every resample, of the shape (RESAMPLES, seeds)."""
    keys = randomness.keys("theory bootstrap", np.arange(RESAMPLES)[:, None], np.arange(seeds))
    return (randomness.uniform(keys) * seeds).astype(np.int64)


def bootstrap(samples: Array, statistic: Callable[[Array], Array]) -> Estimate:
    """A statistic of the mean over seeds, with its interval.

    The last dimension of `samples` is the seeds. `statistic` maps R means (..., R) to R numbers.
    """
    draws = np.stack([samples[..., rows].mean(-1) for rows in resampled(samples.shape[-1])], -1)
    low, high = np.percentile(statistic(draws), [2.5, 97.5])
    value = statistic(samples.mean(-1, keepdims=True))[0]
    return Estimate(float(value), float(low), float(high))


def exponent(x: Sequence[float], samples: Array) -> Estimate:
    """The exponent of a power law in x; samples have the shape (len(x), seeds)."""
    return bootstrap(samples, lambda mean: slope(x, mean))
