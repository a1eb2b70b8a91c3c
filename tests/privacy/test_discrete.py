"""The discrete Gaussian has its exact probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from fafed.privacy.discrete import discrete_gaussian


@pytest.mark.parametrize("sigma", [1, 3])
def test_small_ones_have_their_probabilities(sigma):
    n = 200_000
    found = discrete_gaussian(sigma, n, np.random.default_rng(sigma))
    places = np.arange(-4 * sigma, 4 * sigma + 1)
    weights = np.exp(-(places**2) / (2 * sigma**2))
    far = np.arange(4 * sigma + 1, 20 * sigma)
    total = weights.sum() + 2 * np.exp(-(far**2) / (2 * sigma**2)).sum()
    due = n * weights / total
    seen = np.array([(found == place).sum() for place in places])
    rest = n - seen.sum(), n - due.sum()
    assert chisquare([*seen, rest[0]], [*due, rest[1]]).pvalue > 1e-3


def test_large_ones_have_mean_variance_and_kurtosis():
    n, sigma = 200_000, 2**44 + 12345
    found = discrete_gaussian(sigma, n, np.random.default_rng(0)) / sigma
    assert abs(found.mean()) < 5 / math.sqrt(n)
    assert abs(found.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((found**4).mean() - 3) < 5 * math.sqrt(96 / n)
    odd = discrete_gaussian(sigma, n, np.random.default_rng(1)) % 2
    assert abs(odd.mean() - 0.5) < 5 / math.sqrt(4 * n)  # the last bit is noise, too
    with pytest.raises(ValueError, match="sigma must be in"):
        discrete_gaussian(0, 1, np.random.default_rng(0))
