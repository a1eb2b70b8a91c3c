"""Which clients take part in which round, and which of them fail."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np

from fafed.core import randomness
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.arguments import checked
from fafed.core.plain import number, plain
from fafed.errors import ConfigError

Participation = float | Sequence[Sequence[int]] | Callable[[int], Sequence[int]]


class Cohort:
    """The clients invited to a round and those that answer: a function of (seed, round).

    `participation` is a fraction (each round draws new clients), a list of client lists (used
    cyclically), or a function of the round. `failure` is the probability that an invited client
    fails in a round. A failed client counts as absent. The bytes sent to it are still counted,
    unless all clients fail.
    """

    def __init__(
        self,
        population: int,
        *,
        participation: Participation = 1.0,
        failure: float = 0.0,
        seed: int = 0,
        quorum: Callable[[int], int] = lambda invited: 1,
        poisson: bool = False,
    ) -> None:
        """quorum: how many of the invited clients must answer. If fewer do, nobody counts.
        poisson: each client is invited with the same probability, independently of all others, as
        the accounting of differential privacy assumes."""
        if isinstance(participation, np.ndarray):
            participation = participation.tolist()
        self.population = population
        self.participation: Participation = plain(participation)
        self.failure = checked("failure", failure)
        self.seed = checked("seed", seed)
        self.quorum = quorum
        self.poisson = poisson
        choice = self.participation
        if isinstance(choice, Sequence) and not isinstance(choice, str):
            if not choice:
                raise ConfigError(
                    "participation is an empty schedule: list the clients of each round"
                )
            for clients in choice:
                self._checked(clients)
        elif not callable(choice) and not (number(choice) and 0 < choice <= 1):
            raise ConfigError(
                f"participation must be a fraction in (0, 1], a list of client lists or a "
                f"function of the round, got {choice!r}"
            )

    @property
    def always_all_clients(self) -> bool:
        return self.failure == 0 and self.participation == 1

    def invited(self, round: int) -> tuple[int, ...]:
        choice = self.participation
        if callable(choice):
            return self._checked(choice(round))
        if isinstance(choice, Sequence):
            return self._checked(choice[(round - 1) % len(choice)])
        if choice == 1:
            return tuple(range(self.population))
        if self.poisson:
            everyone = np.arange(self.population)
            draw = randomness.uniform(randomness.keys("cohort", self.seed, round, everyone))
            return tuple(everyone[draw < choice].tolist())
        count = max(1, round_half_up(choice * self.population))
        order = randomness.permutations(
            randomness.keys("cohort", self.seed, round), self.population
        )
        return tuple(sorted(order[:count].tolist()))

    def answering(self, round: int, invited: Sequence[int]) -> tuple[int, ...]:
        if not self.failure:
            return tuple(invited)
        draw = randomness.uniform(randomness.keys("failure", self.seed, round, np.asarray(invited)))
        found = tuple(c for c, u in zip(invited, draw, strict=True) if u >= self.failure)
        return found if len(found) >= self.quorum(len(invited)) else ()

    def _checked(self, clients: Sequence[int]) -> tuple[int, ...]:
        try:
            chosen = tuple(sorted({operator.index(c) for c in clients}))
        except TypeError:
            raise ConfigError(
                f"participation has {clients!r} for a round: a round needs a list of client "
                "numbers, for example [[0, 1], [2, 3]] for two rounds in turn"
            ) from None
        if not chosen or chosen[0] < 0 or chosen[-1] >= self.population:
            raise ConfigError(
                f"participation names clients {list(clients)}: a round needs at least one of "
                f"0..{self.population - 1}"
            )
        return chosen


def round_half_up(value: float) -> int:
    return int(value + 0.5)


def check_everyone(algorithm: AnyAlgorithm, participation: Participation, failure: float) -> None:
    """Refuse absent clients if the algorithm needs everyone."""
    if algorithm.requires_all_clients and (participation != 1 or failure):
        raise ConfigError(
            f"{algorithm} needs every client in every round, but participation={participation!r} "
            f"and failure={failure!r}: use all clients"
            + (f", or {algorithm.absence_cure}" if algorithm.absence_cure else "")
            + ", or another algorithm"
        )
