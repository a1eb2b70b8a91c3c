"""Differential privacy of a whole client: its message is clipped, and the sum gets noise.

What counts of a message is its difference from the message of a client without data, which every
one can compute from the broadcast. All leaves together are one vector, each leaf divided by a
public factor. It is clipped to the norm `clip`. The sum gets normal noise of standard deviation
noise * clip, and is divided by the expected number of clients, not by the actual one.

With secure aggregation nobody may see the exact sum. So each client rounds its vector to integers
and adds a share of the noise, in integers, too: a discrete Gaussian (Kairouz, Liu, Steinke 2021,
https://arxiv.org/abs/2102.06387). The shares of as many clients as must stay to the end are enough.
Rounding may make a vector longer by half a unit per number, and the noise is larger by as much. The
unit is 2^-44 of the bound. At this size a sum of discrete Gaussians is one of the summed variance,
up to a difference below exp(-2^40) for any practical noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fafed.privacy.clipping import add_noise, clip_factors, keyed_draws
from fafed.privacy.discrete import discrete_gaussian
from fafed.privacy.encoding import FRACTION, exponent_of
from fafed.privacy.options import quorum

Rows = Mapping[str, Tensor]  # leaf -> (clients, numbers)


@dataclass(frozen=True)
class ClientNoise:
    """The clipping and the noise of a run. `rate` is the probability that a client takes part."""

    clip: float
    noise: float
    rate: float
    population: int
    factors: Mapping[str, float]
    secure: bool
    seed: int

    @property
    def expected(self) -> float:
        """The expected number of clients, by which the sum is divided."""
        return self.rate * self.population

    @property
    def unit(self) -> float:
        """What the integer 1 stands for in secure sums."""
        return math.ldexp(1.0, exponent_of(self.clip) - FRACTION[64])

    def clipped(self, rows: Rows) -> dict[str, Tensor]:
        """The differences of some clients, divided by the factors and clipped, in float64."""
        scaled = {name: leaf.double() / self.factors.get(name, 1.0) for name, leaf in rows.items()}
        squares = [leaf.square().sum(1) for leaf in scaled.values()]
        norms = torch.stack(squares).sum(0).sqrt()
        factors = clip_factors(norms, torch.ones_like(norms, dtype=torch.bool), self.clip)
        return {name: factors[:, None] * leaf for name, leaf in scaled.items()}

    def share(self, invited: int, numbers: int) -> int:
        """The standard deviation of one client's noise in secure sums, in units."""
        longest = self.clip / self.unit + math.sqrt(numbers) / 2
        return math.ceil(self.noise * longest / math.sqrt(quorum(invited)))

    def encoded(
        self, rows: Rows, clients: Sequence[int], invited: int, key: str
    ) -> dict[str, Tensor]:
        """What some clients send in secure sums: integers with noise, already added up."""
        numbers = sum(leaf.shape[1] for leaf in rows.values())
        found, deviation = {}, self.share(invited, numbers)
        for name, leaf in rows.items():
            whole = (leaf / self.unit).round().to(torch.int64).sum(0)
            drawn = np.zeros(leaf.shape[1], dtype=np.int64)
            for client in clients:
                draws = keyed_draws(f"share {self.seed} {key} {name} {client}")
                drawn += discrete_gaussian(deviation, len(drawn), draws)
            found[name] = whole + torch.from_numpy(drawn).to(whole.device)
        return found

    def mean(self, name: str, total: Tensor, key: str) -> Tensor:
        """The private mean of one leaf, from the sum of the clipped differences."""
        if self.secure:
            total = total.double() * self.unit
        else:
            draws = keyed_draws(f"client {self.seed} {key} {name}")
            total = add_noise(total, self.noise * self.clip, draws)
        return total * (self.factors.get(name, 1.0) / self.expected)
