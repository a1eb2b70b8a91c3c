"""One client after another, with autograd. This works for every model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import Exchange, HasX
from fafed.engines.answered import AnsweredMean, Answers
from fafed.engines.backends.base import Backend, Found
from fafed.engines.client import Oracle, check, visit
from fafed.engines.states import ClientStates, Row
from fafed.objectives.base import Memory


class Loop(Backend):
    name = "loop"

    def check(self) -> None:
        """The loop supports every task."""

    def groups(self, clients: Sequence[int], states: ClientStates) -> list[list[int]]:
        return [[client] for client in clients]

    def work(
        self,
        exchange: Exchange,
        down: HasX,
        buffers: tuple[Tensor, ...],
        group: Sequence[int],
        step: int,
        states: ClientStates,
        mean: AnsweredMean | None = None,
    ) -> Found:
        (client,) = group
        _, objective, source, weights, steps = self.task
        batches = source.batches(source.draw(exchange.draw, client, step, steps))
        state = states.of_client(client, down.x)
        oracle = Oracle(objective.for_visit(), Memory(buffers, state.hidden))
        found = visit(oracle, exchange, down, state.local, batches)
        check(client, found.loss, found.message)
        own = found.state
        if mean is not None:
            one = tree.map(lambda leaf: leaf[None], (found.message, found.buffers))
            owed = tree.map(lambda leaf: leaf[None], state.owed)
            facts = found.loss[None], found.has_loss[None], found.evaluations, found.samples
            mean.answer(Answers(group, one, *facts, owed))
            own = own._replace(owed=tree.take(mean.owed, 0))
        return Found(
            {client: Row(own)},
            mean,
            (found.message, found.buffers),
            weights[client] * float(found.loss),
            found.evaluations,
            found.samples,
            [] if found.has_loss else [client],
        )
