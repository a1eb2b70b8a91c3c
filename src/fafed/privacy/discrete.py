"""Exact samples of the discrete Gaussian, in integers (Canonne, Kamath, Steinke 2020,
https://arxiv.org/abs/2004.00010).

P(y) is proportional to exp(-y^2 / (2 sigma^2)) for every integer y. The algorithm is theirs with
scale t = sigma in the discrete Laplace distribution, for a whole array at a time. All that it draws
are uniform integers and comparisons of integers, so no number is rounded: a probability such as
exp(-p^2 / (2 sigma^2)) is met exactly, as a chain of events of probability p / sigma, 1/2 and 1/k.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
LARGEST = 2**56  # of sigma: sums of a few of them fit into 64 bits


def discrete_gaussian(sigma: int, count: int, draws: np.random.Generator) -> Integers:
    """So many independent integers."""
    if not 0 < sigma <= LARGEST:
        raise ValueError(f"sigma must be in 1..2^56, got {sigma}")
    found = np.empty(count, dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        tried, good = _laplace(sigma, len(missing), draws)
        # accept with probability exp(-(|y| - sigma)^2 / (2 sigma^2))
        good[good] = _accepted(np.abs(np.abs(tried[good]) - sigma), sigma, draws)
        found[missing[good]] = tried[good]
        missing = missing[~good]
    return found


def _laplace(t: int, count: int, draws: np.random.Generator) -> tuple[Integers, Flags]:
    """Integers with P(y) proportional to exp(-|y| / t), and which of them count."""
    low = draws.integers(0, t, count)
    good = _exp_fraction([(low, t)], 1, draws)
    high = np.zeros(count, dtype=np.int64)
    going = good.copy()
    while going.any():
        at = going.nonzero()[0]
        one = np.ones(len(at), dtype=np.int64)
        more = _exp_fraction([(one, 1)], 1, draws)
        high[at[more]] += 1
        going[at[~more]] = False
    size = low + t * high
    negative = draws.integers(0, 2, count).astype(bool)
    good &= ~(negative & (size == 0))  # zero would count twice
    return np.where(negative, -size, size), good


def _accepted(gap: Integers, sigma: int, draws: np.random.Generator) -> Flags:
    """True with probability exp(-(gap / sigma)^2 / 2). With gap / sigma = n + f this is
    exp(-1/2)^(n^2) exp(-f)^n exp(-f^2 / 2)."""
    whole, rest = np.divmod(gap, sigma)
    good = _exp_fraction([(rest, sigma), (rest, sigma)], 2, draws)
    for left, fractions, halves in ((whole**2, False, 2), (whole.copy(), True, 1)):
        while (at := (good & (left > 0)).nonzero()[0]).size:
            one = np.ones(len(at), dtype=np.int64)
            part = (rest[at], sigma) if fractions else (one, 1)
            good[at] = _exp_fraction([part], halves, draws)
            left[at] -= 1
    return good


def _exp_fraction(
    fractions: list[tuple[Integers, int]], divisor: int, draws: np.random.Generator
) -> Flags:
    """True with probability exp(-g), where g <= 1 is the product of these fractions p / q, divided
    by the divisor. Count k up while an event of probability g / k happens: the count is odd with
    this probability."""
    count = len(fractions[0][0])
    k, odd = 1, np.ones(count, dtype=bool)
    going = np.arange(count)
    while len(going):
        more = draws.integers(0, k * divisor, len(going)) == 0
        for p, q in fractions:
            more &= draws.integers(0, q, len(going)) < p[going]
        going = going[more]
        odd[going] ^= True
        k += 1
    return odd
