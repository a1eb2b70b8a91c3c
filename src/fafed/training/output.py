"""Which round's model a run returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from fafed.core import randomness, tree
from fafed.core.records import Record
from fafed.errors import ConfigError
from fafed.training.loop import State

RULES = ("last", "random_round", "best_val")


class Output:
    """The model of the last round, of a random round, or of the round with the lowest validation
    loss. It is chosen as the rounds go by, so that only one earlier model is kept."""

    def __init__(self, rule: str = "last", seed: int = 0) -> None:
        if rule not in RULES:
            raise ConfigError(f"output must be 'last', 'random_round' or 'best_val', got {rule!r}")
        self.rule, self.seed = rule, seed
        self.round = 0  # the chosen one
        self.chosen: tuple[Tensor, tuple[Tensor, ...]] | None = None  # its vector and buffers
        self._lowest = math.inf

    def look(self, record: Record, state: State) -> None:
        """Consider the round that is just finished."""
        if self._better(record):
            self.round, self.chosen = record.round, (state.shared.x, state.buffers)

    def of(self, state: State) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The vector and the buffers to return after this state."""
        return self.chosen or (state.shared.x, state.buffers)

    def tensors(self, state: State) -> dict[str, Tensor]:
        """What a checkpoint must have beside the state, by name."""
        if self.chosen is None or self.round == state.round:
            return {}
        return tree.flatten(self.chosen, "chosen")

    def resume(
        self, records: Sequence[Record], state: State, tensors: Mapping[str, Tensor]
    ) -> None:
        """Return to what was chosen after these records. `tensors` are from the checkpoint."""
        self.round, self.chosen, self._lowest = 0, None, math.inf
        for record in records:
            if self._better(record):
                self.round = record.round
        here = state.shared.x, state.buffers
        if self.round == state.round:
            self.chosen = here
        elif self.round:
            self.chosen = tree.unflatten(here, dict(tensors), "chosen")

    def _better(self, record: Record) -> bool:
        if self.rule == "random_round":  # every round so far has the same probability
            draw = randomness.uniform(randomness.keys("output", self.seed, record.round))
            return float(draw) * record.round < 1
        if self.rule == "best_val":
            if not record.validation or not record.validation["loss"] < self._lowest:
                return False
            self._lowest = record.validation["loss"]
        return True
