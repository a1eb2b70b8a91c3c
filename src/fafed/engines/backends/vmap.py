"""Groups of clients, computed together under `torch.func.vmap`. Fast if gradients are small."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fafed.core import tree
from fafed.core.algorithm import Exchange, HasX, exchanges_of_round
from fafed.core.batch import Batch
from fafed.core.tree import Tree
from fafed.data.sources.base import ClientBatches, Drawn, Draws
from fafed.engines.answered import AnsweredMean, Answers
from fafed.engines.backends.base import Backend, CannotRun, Differs, Found
from fafed.engines.base import ClientState, Sent
from fafed.engines.client import Oracle, check, visit
from fafed.engines.mean import Mean
from fafed.engines.states import ClientStates, Row
from fafed.objectives import agreement
from fafed.objectives.base import Evaluation, Memory

SMALL_GRADIENT = 3e7  # floating-point operations; see studies/performance/engine_choice.py
GROUPS = 2  # the least number of groups: most machines have at least two cores
SLOW_BYTES = 2**20  # models of at least this size have SLOW_GROUPS groups
SLOW_GROUPS = 20  # many groups, so that all workers end at about the same time
GROUP_BYTES = 2**23  # bytes of all models in one group: more would not fit into the cache


# of one client, or stacked of a group: state, message, buffers, loss, whether there is one
Outcome: TypeAlias = tuple[ClientState, Tree, tuple[Tensor, ...], Tensor, Tensor]


class FunctionalOracle(Oracle):
    """Gradients by torch.func, which work under vmap."""

    in_place = False

    def evaluate(self, x: Tensor, batch: Batch, memory: Memory) -> Evaluation:
        return self.objective.evaluate_functional(x, batch, memory)


class Vmap(Backend):
    name = "vmap"
    oracle: ClassVar[type[Oracle]] = FunctionalOracle

    def check(self) -> None:
        self.check_stackable()
        try:
            why = self._difference()
        except Exception as cause:  # whatever the model does that vmap cannot
            raise CannotRun(f"the model does something vmap cannot: {cause}") from cause
        if why is not None:
            raise Differs(f"vmap does not compute what the loop does ({why})")

    def check_stackable(self) -> None:
        exchanges = exchanges_of_round(self.task.algorithm, opening=True)
        kinds = {kind for exchange in exchanges for kind in exchange.draw}
        if self.task.source.loop_only is not None:
            raise CannotRun(self.task.source.loop_only)
        if not self.task.source.stackable(sorted(kinds)):
            raise CannotRun("the clients' batches differ in size")

    def drawback(self) -> str | None:
        """Decide by the floating-point operations of one gradient. This number does not depend on
        the machine or its load, so the choice, and with it every digit, is reproducible. Torch
        cannot count the operations of a module that computes its loss itself."""
        _, objective, source, weights, _ = self.task
        if len(weights) == 1:
            return "there is one client"
        if objective.fused:
            return "the model computes its loss itself"
        if objective.recurrent_layers:
            return "torch has no fast recurrent layers under vmap"
        if source.loop_only is not None:
            return source.loop_only
        draws = tree.map(lambda leaf: leaf.to(objective.x0.device), self._first_draws(0))
        (batch,) = ClientBatches(source.gather, draws)
        operations = Operations()
        with operations:
            objective.evaluate(objective.x0, batch, objective.start())
        if operations.count <= SMALL_GRADIENT:
            return None
        return f"a gradient takes {operations.count:.2g} operations, more than {SMALL_GRADIENT:.2g}"

    def gather(self) -> Callable[[Drawn], Any]:
        """The function that gets the data of some draws."""
        return self.task.source.gather

    def groups(self, clients: Sequence[int], states: ClientStates) -> list[list[int]]:
        model = tree.nbytes(self.task.objective.x0)
        least = GROUPS if model < SLOW_BYTES else SLOW_GROUPS
        size = max(1, min(GROUP_BYTES // model, -(-len(clients) // least)))
        groups = []
        for has_hidden in (False, True):  # states of one group must have equal shapes
            kind = [c for c in clients if states.has_hidden(c) is has_hidden]
            count = -(-len(kind) // size)
            count += count % 2 if 1 < count < len(kind) else 0  # two workers end together
            ends = [len(kind) * i // count for i in range(count + 1)] if count else []
            groups += [kind[i:j] for i, j in itertools.pairwise(ends)]
        return groups

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
        _, objective, source, all_weights, steps = self.task
        gather = self.gather()
        count: list[tuple[int, int]] = []

        def one(state: ClientState, draws: Draws, buffers: tuple[Tensor, ...]) -> Outcome:
            oracle = self.oracle(objective, Memory(buffers, state.hidden))
            batches = ClientBatches(gather, draws)
            found = visit(oracle, exchange, down, state.local, batches)
            count.append((found.evaluations, found.samples))
            return found.state, found.message, found.buffers, found.loss, found.has_loss

        stacked = states.of_group(group, down.x)
        owed = stacked.owed
        draws = source.draw_stacked(exchange.draw, group, step, steps)
        own = tree.map(lambda leaf: leaf.expand(len(group), *leaf.shape).clone(), buffers)
        inputs = stacked._replace(owed=()), draws, own
        stacked, message, own, losses, has_loss = torch.func.vmap(one)(*inputs)
        weights = losses.new_tensor([all_weights[c] for c in group], dtype=torch.float64)
        ((evaluations, samples),) = count
        total = Mean[Sent]() if mean is None else mean
        if mean is None:
            total.add_stacked((message, own), weights)
        numbers = total.total if mean is None else message
        if not (torch.isfinite(losses).all() and tree.finite(numbers)):
            for row, client in enumerate(group):  # a sum may overflow, so look at each client
                check(client, losses[row], tree.take(message, row))
        if mean is not None:
            facts = losses, has_loss, evaluations, samples
            mean.answer(Answers(group, (message, own), *facts, owed))
            stacked = stacked._replace(owed=mean.owed)
        return Found(
            {client: Row(stacked, row) for row, client in enumerate(group)},
            total,
            tree.take((message, own), 0),
            float(weights.to(losses) @ losses),
            len(group) * evaluations,
            len(group) * samples,
            [c for c, has in zip(group, has_loss.tolist(), strict=True) if not has],
        )

    def _first_draws(self, client: int) -> Draws:
        return self.task.source.draw(("round",), client, 0, 1)

    def _difference(self) -> str | None:
        """How the results of two clients under vmap differ from the loop's, or None."""
        _, objective, source, weights, _ = self.task
        two = [self._first_draws(c) for c in (0, min(1, len(weights) - 1))]
        draws = [tree.map(lambda leaf: leaf.to(objective.x0.device), d) for d in two]

        def batch_of(draws: Draws) -> Batch:
            (batch,) = ClientBatches(source.gather, draws)
            return batch

        def one(x: Tensor, draws: Draws, memory: Memory) -> Evaluation:
            return objective.evaluate_functional(x, batch_of(draws), memory)

        def values(of: str, found: Evaluation) -> agreement.Values:
            g, loss, memory = found
            named = agreement.values(loss, g, memory, objective.sizes)
            return {f"{name} of {of}": parts for name, parts in named.items()}

        def named(a: Evaluation, b: Evaluation, c: Evaluation) -> agreement.Values:
            return values("client 0", a) | values("client 1", b) | values("client 1 elsewhere", c)

        def fast(x: Tensor) -> agreement.Values:
            memory = tree.map(lambda leaf: torch.stack([leaf, leaf]), objective.start())
            both = tree.stack(draws)
            shared = torch.func.vmap(one, in_dims=(None, 0, 0))(x, both, memory)
            own = torch.func.vmap(one)(torch.stack([x, 0.9 * x]), both, memory)
            return named(tree.take(shared, 0), tree.take(shared, 1), tree.take(own, 1))

        def plain(x: Tensor) -> agreement.Values:
            places = ((x, 0), (x, 1), (0.9 * x, 1))
            found = [
                objective.evaluate(y, batch_of(draws[c]), objective.start()) for y, c in places
            ]
            return named(*found)

        return agreement.disagreement(
            fast, plain, objective.x0, objective.shapes, objective.precision
        )


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the same operations as torch's FlopCounterMode, without importing torch's compiler,
    which takes a second."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.count += formula(*args, **(kwargs or {}), out_val=out)
        return out
