"""How much privacy a run has spent, client by client.

A batch of rate r is drawn by Poisson sampling: each example is in it with probability r. Then k
gradients at different points are taken on it, each with noise sigma. Together they are one Gaussian
mechanism with noise sigma / sqrt(k), on a sample of rate r. All of them are composed with Renyi
differential privacy (package dp-accounting). Two data sets are neighbours if one has one example
more (add or remove). The number of a client's examples is public.

What a round costs is known before it begins. So epsilon is a function of the number of rounds, and
nothing of it has to be saved.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fafed.core.algorithm import AnyAlgorithm, RoundInfo, exchanges_of_round
from fafed.core.batch import Batch, Batches
from fafed.core.extras import require
from fafed.core.gradient import Grad, StormPoint, StormSettings, combined_storm_steps
from fafed.errors import ConfigError, FafedError

OVERFLOW = 1e-3  # the part of delta that a batch beyond its cap may take
# Orders of the Renyi divergence. Those below 2 would matter for an epsilon that promises nothing.
ORDERS = (*(order / 10 for order in range(20, 110)), *range(11, 65), *(128, 256, 512, 1024))
LARGEST_NOISE = 2.0**20  # more is not tried if a noise is searched


class Use(NamedTuple):
    """The batches of one kind that have the same cost."""

    kind: str  # "round", "anchor" or "full"
    gradients: int  # on the same batch, k


Uses = Counter[Use]  # -> how many batches


class RoundCosts(NamedTuple):
    """What the rounds of an algorithm use of a client's data."""

    first: Uses  # with the opening
    later: Uses

    def times(self, gradients: int) -> RoundCosts:
        """The same if each gradient is so many."""
        return RoundCosts(*(_times(uses, gradients) for uses in self))


def _times(uses: Uses, gradients: int) -> Uses:
    return Counter({Use(u.kind, gradients * u.gradients): n for u, n in uses.items()})


def round_costs(
    algorithm: AnyAlgorithm, x: Tensor, steps: int, population: int, *, combine: bool = False
) -> RoundCosts:
    """Count the gradients that the algorithm takes on each batch, in a rehearsal with gradients of
    zero. Some rounds of an algorithm may take fewer: each counts as the most expensive. `combine`:
    the steps of FAFED and STEM ask for one difference instead of two gradients."""
    combined = False
    shared: Any = algorithm.init(torch.zeros_like(x))
    local: Any = algorithm.join(torch.zeros_like(x))
    rounds = []
    for round in range(4):
        uses: Uses = Counter()
        for exchange in exchanges_of_round(algorithm, opening=round == 0):
            batches = Rehearsed(steps)
            count = _Counted(combine)
            local, message = exchange.client(count, exchange.send(shared), local, batches)
            made = steps if "round" in exchange.draw else 0
            info = RoundInfo(population, population, made, 1.0)
            shared = exchange.server(shared, message, info)
            uses.update(count.uses())
            combined |= count.combined
        rounds.append(uses)
    if combine and not combined:
        raise ConfigError(
            f"privacy.combine = true does nothing for {algorithm}: only FAFED and STEM with the "
            "steps of their papers take the difference of two gradients; leave it out"
        )
    return RoundCosts(rounds[0], _most_expensive(rounds[1:]))


def _most_expensive(rounds: Sequence[Uses]) -> Uses:
    """For each kind: as many batches and gradients as in the round with most of them."""
    found: Uses = Counter()
    for kind in sorted({use.kind for uses in rounds for use in uses}):
        lists = [
            sorted((u.gradients for u in uses.elements() if u.kind == kind), reverse=True)
            for uses in rounds
        ]
        for place in range(max(map(len, lists))):
            found[Use(kind, max(own[place] for own in lists if len(own) > place))] += 1
    return found


class Rehearsed:
    """Batches without data. Each has one number, by which it is known."""

    def __init__(self, steps: int) -> None:
        self.steps = [_batch(float(k)) for k in range(steps)]
        self.anchor = _batch(-1.0)._replace(step=False, moves_buffers=False)
        self.full = _batch(-2.0)._replace(step=False, moves_buffers=False)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.steps)


def _batch(number: float) -> Batch:
    data = (torch.full((1,), number),)
    return Batch(data, torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool))


class _Counted(Grad):
    """Gradients of zero, counted batch by batch."""

    def __init__(self, combine: bool) -> None:
        self.calls: Counter[float] = Counter()
        self.combine = combine
        self.combined = False  # whether a difference was asked for

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        self.calls[float(batch.data[0])] += 1
        return torch.zeros_like(x)

    def storm_steps(
        self, start: StormPoint, settings: StormSettings, batches: Batches, *, keep_x: bool
    ) -> StormPoint:
        if not self.combine:
            return super().storm_steps(start, settings, batches, keep_x=keep_x)
        self.combined = True
        return combined_storm_steps(
            lambda x, before, keep, batch: self(x, batch), start, settings, batches
        )

    def uses(self) -> Iterator[Use]:
        names = {-1.0: "anchor", -2.0: "full"}
        return (Use(names.get(place, "round"), count) for place, count in self.calls.items())


class Accountant:
    """The epsilon of every client after any number of rounds."""

    def __init__(
        self,
        costs: RoundCosts,
        rates: Sequence[dict[str, float]],
        *,
        noise: float,
        delta: float,
        invited: Callable[[int], Sequence[int]],
    ) -> None:
        """rates: of each client, kind of batch -> sampling rate. invited: the clients of a round.
        A client's round counts whether or not its answer arrived."""
        require("differential privacy", "privacy", "dp_accounting")
        self.costs = costs
        self.rates = rates
        self.noise = noise
        self.delta = delta
        self.invited = invited
        self._taken: list[list[int]] = [[0] * len(rates)]  # after r rounds: rounds of each client

    def epsilon(self, rounds: int) -> float:
        """The largest epsilon of a client after so many rounds; 0 before the first."""
        taken = self.rounds_of_clients(rounds)
        # a client with higher rates and at least as many rounds has spent more
        most: dict[tuple[float, ...], int] = {}
        kinds = sorted(self.rates[0])
        for rates, count in zip(self.rates, taken, strict=True):
            key = tuple(rates[kind] for kind in kinds)
            most[key] = max(most.get(key, 0), count)
        worst: list[tuple[tuple[float, ...], int]] = []
        for key, count in sorted(most.items(), reverse=True):
            behind = (
                count <= rounds and all(map(operator.le, key, other)) for other, rounds in worst
            )
            if not any(behind):
                worst.append((key, count))
        return max(self._epsilon(dict(zip(kinds, key, strict=True)), count) for key, count in worst)

    def of_client(self, client: int, rounds: int) -> float:
        return self._epsilon(self.rates[client], self.rounds_of_clients(rounds)[client])

    def affordable(self, rounds: int, most: float) -> int:
        """How many of these rounds can be made before a client's epsilon passes `most`."""
        low, high = 0, rounds + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= most else (low, middle)
        return low

    def with_noise(self, noise: float) -> Accountant:
        return Accountant(
            self.costs, self.rates, noise=noise, delta=self.delta, invited=self.invited
        )

    def noise_for(self, epsilon: float, rounds: int) -> float:
        """The least noise, to three digits, with which these rounds spend at most epsilon."""
        if not epsilon > 0:
            raise ConfigError(f"epsilon must be > 0, got {epsilon:g}")
        low, high = 0.0, 1.0
        while self.with_noise(high).epsilon(rounds) > epsilon:
            low, high = high, 2 * high
            if high > LARGEST_NOISE:
                raise ConfigError(f"no noise gives epsilon = {epsilon:g} in {rounds} rounds")
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            enough = self.with_noise(middle).epsilon(rounds) <= epsilon
            low, high = (low, middle) if enough else (middle, high)
        return high

    def rounds_of_clients(self, rounds: int) -> list[int]:
        """Of so many rounds, in how many each client is invited."""
        while len(self._taken) <= rounds:
            now = list(self._taken[-1])
            for client in self.invited(len(self._taken)):
                now[client] += 1
            self._taken.append(now)
        return self._taken[rounds]

    def _epsilon(self, rates: dict[str, float], rounds: int) -> float:
        if not rounds:
            return 0.0
        # a client that joins late has no opening: the more expensive first round is assumed
        total = self.released(self.costs.first, rates)
        for one, count in self.released(self.costs.later, rates).items():
            total[one] += (rounds - 1) * count
        return epsilon_of(total, self.delta)

    def released(self, uses: Uses, rates: Mapping[str, float]) -> Counter[Released]:
        """These uses by a client with these rates. Kinds of batches with one rate are added up."""
        found: Counter[Released] = Counter()
        for use, count in uses.items():
            found[Released(rates[use.kind], self.noise, use.gradients)] += count
        return found


class Released(NamedTuple):
    """What leaves a client of one batch."""

    rate: float  # the probability that an example is in the batch
    noise: float  # of one gradient, in units of its bound
    gradients: int  # on the same batch


def epsilon_of(released: Mapping[Released, int], delta: float) -> float:
    """The epsilon of all that a client has released: so many batches of each kind."""
    require("differential privacy", "privacy", "dp_accounting")
    total = np.zeros(len(ORDERS))
    for one, count in sorted(released.items()):  # so the last digits are always the same
        if count:  # not 0 times infinity
            total += count * _renyi(one.rate, one.noise / math.sqrt(one.gradients))
    return _converted(total, delta) if total.any() else 0.0


# The arithmetic of dp-accounting.


@lru_cache(maxsize=4096)
def _renyi(rate: float, noise: float) -> NDArray[np.float64]:
    """The Renyi divergences, order by order, of one Gaussian mechanism on a Poisson sample."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    event: Any = dp.GaussianDpEvent(noise)
    if rate < 1:
        event = dp.PoissonSampledDpEvent(rate, event)
    accountant = RdpAccountant(ORDERS)
    accountant.compose(event)
    found = np.asarray(accountant._rdp, dtype=np.float64)
    if found.shape != (len(ORDERS),) or np.isnan(found).any() or not (found > 0).all():
        raise FafedError(f"no epsilon can be computed for noise = {noise:g} at the rate {rate:g}")
    return found


def _converted(renyi: NDArray[np.float64], delta: float) -> float:
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(ORDERS, renyi, delta)[0])


def cap(examples: int, rate: float, draws: int, delta: float) -> int:
    """The most examples of a batch. That one of so many batches is larger has a probability of at
    most OVERFLOW times delta."""
    require("differential privacy", "privacy", "scipy", "dp_accounting")
    from scipy.stats import binom

    if rate >= 1:
        return examples
    return min(examples, max(1, int(binom.isf(OVERFLOW * delta / draws, examples, rate)) + 1))


def probability_of_fewer(least: int, population: int, rate: float) -> float:
    """That fewer than `least` of the clients are in a Poisson sample."""
    require("differential privacy", "privacy", "scipy", "dp_accounting")
    from scipy.stats import binom

    return float(binom.cdf(least - 1, population, rate))


__all__ = [
    "Accountant",
    "Rehearsed",
    "Released",
    "RoundCosts",
    "Use",
    "cap",
    "epsilon_of",
    "probability_of_fewer",
    "round_costs",
]
