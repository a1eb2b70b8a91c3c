"""One client's part of an exchange: the same on every engine."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fafed import tree
from fafed.algorithm import Batch, Batches, Exchange
from fafed.engines.contract import NotFinite
from fafed.objective import Memory, Objective


class ClientState(NamedTuple):
    """What a client keeps between exchanges."""

    local: Any
    hidden: Any


class Visit(NamedTuple):
    """What an exchange left behind on one client, and what it sends back."""

    state: ClientState
    message: Any
    buffers: tuple[Tensor, ...]
    loss: Tensor  # mean over the points visited
    evaluations: int
    samples: int


class Oracle:
    """The `grad` that an algorithm calls on one client: counts, and keeps the memory.

    The first evaluation on a batch is the one at the current point: it alone moves buffers and
    recurrent state and counts for the loss; a second one (at the previous point) starts from the
    same memory and leaves it as it was.
    """

    def __init__(self, objective: Objective, memory: Memory, *, engine: str) -> None:
        self.objective = objective
        self.engine = engine
        self.before = self.after = memory
        self.data: Any = None
        self.losses: list[Tensor] = []
        self.other_losses: list[Tensor] = []  # of anchors and full passes
        self.evaluations = 0
        self.samples = 0

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        current = batch.data is not self.data
        if current:
            self.data, self.before = batch.data, self.after
        start = self.before if batch.step else self.before._replace(hidden=())
        found = self.objective.evaluate(x, batch, start, engine=self.engine)
        if current:
            hidden = found.memory.hidden if batch.step else self.before.hidden
            self.after = Memory(found.memory.buffers, hidden)
            (self.losses if batch.step else self.other_losses).append(found.loss)
        self.evaluations += 1
        self.samples += len(tree.leaves(batch.data)[0])
        return found.gradient

    @property
    def loss(self) -> Tensor:
        return torch.stack(self.losses or self.other_losses).mean()


def visit(
    objective: Objective,
    exchange: Exchange,
    down: Any,
    buffers: tuple[Tensor, ...],
    state: ClientState,
    batches: Batches,
    *,
    engine: str = "loop",
) -> Visit:
    """Let one client do its part; under vmap, several at once."""
    oracle = Oracle(objective, Memory(buffers, state.hidden), engine=engine)
    local, message = exchange.client(oracle, down, state.local, batches)
    return Visit(
        ClientState(local, oracle.after.hidden),
        message,
        oracle.after.buffers,
        oracle.loss,
        oracle.evaluations,
        oracle.samples,
    )


def check(client: int, loss: Tensor, message: Any) -> None:
    """Refuse what would spoil the mean."""
    if not torch.isfinite(loss):
        raise NotFinite(client, "loss")
    if not tree.finite(message):
        raise NotFinite(client, "message")
