"""The privacy budget of a run."""

from __future__ import annotations

from typing import NamedTuple

from fafed.privacy.accounting import Accountant


class Budget(NamedTuple):
    """What a run may spend, and what it has spent."""

    accountant: Accountant
    max_epsilon: float | None

    def affordable(self, rounds: int) -> int:
        """How many of these rounds can be made."""
        if self.max_epsilon is None:
            return rounds
        return self.accountant.affordable(rounds, self.max_epsilon)
