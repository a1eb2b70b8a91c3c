"""Which clients take part in which round, and which of them fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fafed.core import randomness
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
    ) -> None:
        """quorum: how many of the invited clients must answer. If fewer do, nobody counts."""
        if not isinstance(participation, Sequence) and not callable(participation):
            if not 0 < participation <= 1:
                raise ConfigError(
                    f"participation must be a fraction in (0, 1], a list of client lists or a "
                    f"function of the round, got {participation!r}"
                )
        elif isinstance(participation, Sequence) and not participation:
            raise ConfigError("participation is an empty schedule: list the clients of each round")
        if not 0 <= failure < 1:
            raise ConfigError(f"failure must be a probability in [0, 1), got {failure!r}")
        self.population = population
        self.participation = participation
        self.failure = failure
        self.seed = seed
        self.quorum = quorum
        if isinstance(participation, Sequence):
            for clients in participation:
                self._checked(clients)

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
        chosen = tuple(sorted({int(c) for c in clients}))
        if not chosen or chosen[0] < 0 or chosen[-1] >= self.population:
            raise ConfigError(
                f"participation names clients {list(clients)}: a round needs at least one of "
                f"0..{self.population - 1}"
            )
        return chosen


def round_half_up(value: float) -> int:
    return int(value + 0.5)
