"""All clients in this process, one after another or side by side.

The same algorithm code runs in both: `loop` calls it once per client, `vmap` once for a group of
clients under `torch.func.vmap`. Results agree up to rounding. `auto` takes vmap where the model
allows it and a single gradient is so small that torch's own overhead dominates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fafed import tree
from fafed.algorithm import Algorithm, Batch, Exchange, Trip
from fafed.data.batches import ClientBatches, Draws, Source, draw_stacked
from fafed.engines.contract import NotFinite, Reply
from fafed.errors import ConfigError
from fafed.objective import Memory, Objective

ENGINES = ("auto", "loop", "vmap")
SMALL_GRADIENT = 3e7  # floating-point operations; measured by benchmarks/engine_choice.py
GROUP_BYTES = 2**23  # vmap: parameters of the clients in one group; larger ones leave the cache


class ClientState(NamedTuple):
    """What a client keeps between exchanges."""

    local: Any
    hidden: Any


class Row(NamedTuple):
    """Where a client's state is: by itself, or a row of a group's, which saves restacking."""

    stacked: ClientState
    row: int | None = None

    def state(self) -> ClientState:
        return self.stacked if self.row is None else tree.take(self.stacked, self.row)


class Oracle:
    """The `grad` that an algorithm calls on one client: counts, and keeps the memory.

    The first evaluation on a batch is the one at the current point: it alone moves buffers and
    recurrent state and counts for the loss; a second one (at the previous point) starts from the
    same memory and leaves it as it was.
    """

    def __init__(self, objective: Objective, memory: Memory, *, functional: bool) -> None:
        self.objective = objective
        self.functional = functional
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
        found = self.objective.evaluate(x, batch, start, functional=self.functional)
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


class Simulation:
    """Clients that live in this process."""

    def __init__(
        self,
        algorithm: Algorithm,
        objective: Objective,
        source: Source,
        *,
        weights: Sequence[float],
        steps: int,
        engine: str = "auto",
    ) -> None:
        self.algorithm = algorithm
        self.objective = objective
        self.source = source
        self.weights = list(weights)
        self.steps = steps
        self.kept: list[Row | None] = [None] * len(self.weights)
        self.pending: dict[int, Row] = {}  # of the round under way
        self.engine = self._choose(engine)

    @property
    def population(self) -> int:
        return len(self.weights)

    def deliver(
        self,
        exchange: Exchange,
        shared: Any,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
    ) -> Reply:
        """Carry the exchange to these clients; local steps step+1 .. step+q are theirs."""
        down = exchange.send(shared)
        mean = tree.Mean()
        run = self._side_by_side if self.engine == "vmap" else self._one_by_one
        new, loss, oracle, up = run(exchange, down, buffers, clients, step, mean)
        self.pending |= new
        message, buffers = mean.value()
        n = len(clients)
        share = mean.weight / sum(self.weights)
        trip = Trip(n, self.population, self.steps if "round" in exchange.draw else 0, share)
        units = self.source.units
        return Reply(
            mean=message,
            buffers=buffers,
            trip=trip,
            loss=float(loss) / mean.weight if "round" in exchange.draw else None,
            gradients=oracle.evaluations if units is None else oracle.samples / units,
            samples=oracle.samples,
            bytes_up=n * up,
            bytes_down=n * tree.nbytes((down, buffers)),
        )

    @property
    def states(self) -> list[ClientState | None]:
        """What each client keeps; None for one that has not taken part yet."""
        return [None if kept is None else kept.state() for kept in self.kept]

    @states.setter
    def states(self, states: Sequence[ClientState | None]) -> None:
        self.kept = [None if state is None else Row(state) for state in states]

    def commit(self) -> None:
        for client, kept in self.pending.items():
            self.kept[client] = kept
        self.pending = {}

    def rollback(self) -> None:
        self.pending = {}

    # One client after another.

    def _one_by_one(
        self,
        exchange: Exchange,
        down: Any,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        mean: tree.Mean,
    ) -> tuple[dict[int, Row], float, Work, int]:
        new: dict[int, Row] = {}
        loss, work, up = 0.0, Work(), 0
        for client in clients:
            draws = self._moved(self.source.draw(exchange.draw, client, step, self.steps))
            local, hidden = self._state(client, down.x)
            oracle = Oracle(self.objective, Memory(buffers, hidden), functional=False)
            batches = ClientBatches(self.source.gather, draws)
            local, message = exchange.client(oracle, down, local, batches)
            _check(client, oracle.loss, message)
            mean.add((message, oracle.after.buffers), self.weights[client])
            new[client] = Row(ClientState(local, oracle.after.hidden))
            loss += self.weights[client] * float(oracle.loss)
            work.add(oracle)
            up = self._weight(message, oracle.after.buffers)
        return new, loss, work, up

    # Clients side by side under vmap, in groups that fit the cache.

    def _side_by_side(
        self,
        exchange: Exchange,
        down: Any,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        mean: tree.Mean,
    ) -> tuple[dict[int, Row], float, Work, int]:
        new: dict[int, Row] = {}
        loss, work, up = 0.0, Work(), 0
        for group in self._groups(clients):
            found, oracle = self._group(exchange, down, buffers, group, step)
            locals_, message, memory, losses = found
            _check_rows(group, losses, message)
            stacked = ClientState(locals_, memory.hidden)
            new |= {client: Row(stacked, row) for row, client in enumerate(group)}
            weights = torch.tensor([self.weights[c] for c in group], dtype=torch.float64)
            mean.add_stacked((message, memory.buffers), weights.to(losses.device))
            loss += float(weights.to(losses) @ losses)
            work.add(oracle, len(group))
            up = self._weight(*tree.take((message, memory.buffers), 0))
        return new, loss, work, up

    def _group(
        self,
        exchange: Exchange,
        down: Any,
        buffers: tuple[Tensor, ...],
        group: Sequence[int],
        step: int,
    ) -> tuple[Any, Oracle]:
        oracles: list[Oracle] = []

        def one(local: Any, hidden: Any, draws: Draws, buffers: Any) -> Any:
            oracle = Oracle(self.objective, Memory(buffers, hidden), functional=True)
            oracles.append(oracle)
            batches = ClientBatches(self.source.gather, draws)
            local, message = exchange.client(oracle, down, local, batches)
            return local, message, oracle.after, oracle.loss

        states = self._stacked(group, down.x)
        draws = self._moved(draw_stacked(self.source, exchange.draw, group, step, self.steps))
        own = tree.map(lambda leaf: leaf.expand(len(group), *leaf.shape).clone(), buffers)
        found = torch.func.vmap(one)(states.local, states.hidden, draws, own)
        return found, oracles[0]

    def _groups(self, clients: Sequence[int]) -> list[list[int]]:
        model = self.objective.x0
        size = max(1, GROUP_BYTES // (model.numel() * model.element_size()))
        groups = []
        for has_hidden in (False, True):  # states of one group must stack
            kind = [c for c in clients if self._has_hidden(c) is has_hidden]
            even = -(-len(kind) // max(1, -(-len(kind) // size)))
            groups += [kind[i : i + even] for i in range(0, len(kind), even or 1)]
        return groups

    # What both need.

    def _moved(self, draws: Draws) -> Draws:
        device = self.objective.x0.device
        return draws if device.type == "cpu" else tree.map(lambda leaf: leaf.to(device), draws)

    def _weight(self, message: Any, buffers: tuple[Tensor, ...]) -> int:
        return self.algorithm.message_bytes(message) + tree.nbytes(buffers)

    def _state(self, client: int, x: Tensor) -> ClientState:
        kept = self.pending.get(client) or self.kept[client]
        return ClientState(self.algorithm.join(x), ()) if kept is None else kept.state()

    def _has_hidden(self, client: int) -> bool:
        kept = self.pending.get(client) or self.kept[client]
        return kept is not None and bool(kept.stacked.hidden)

    def _stacked(self, group: Sequence[int], x: Tensor) -> ClientState:
        """The states of a group; at no cost if they came out of the last exchange together."""
        kept = [self.pending.get(client) or self.kept[client] for client in group]
        first = kept[0]
        if all(k is None for k in kept):
            new = ClientState(self.algorithm.join(x), ())
            return tree.map(lambda leaf: leaf.expand(len(group), *leaf.shape), new)  # type: ignore[no-any-return]
        if first is not None and all(
            k is not None and k.stacked is first.stacked and k.row == row
            for row, k in enumerate(kept)
        ):
            leaves = tree.leaves(first.stacked)
            if not leaves or len(leaves[0]) == len(group):
                return first.stacked
        return tree.stack([self._state(client, x) for client in group])  # type: ignore[no-any-return]

    # Which of the two.

    def _choose(self, engine: str) -> str:
        if engine not in ENGINES:
            raise ConfigError(
                f"engine must be one of {', '.join(map(repr, ENGINES))}, got {engine!r}"
            )
        if engine == "loop":
            return engine
        kinds = {kind for e in self._exchanges() for kind in e.draw}
        if not self.source.stackable(sorted(kinds)):
            return self._fall_back(engine, "the clients' batches differ in size")
        work = self._gradient_work()
        if engine == "auto" and (work > SMALL_GRADIENT or self.population == 1):
            return "loop"
        try:
            self._try_vmap()
        except Exception as cause:  # whatever the model does that vmap cannot
            return self._fall_back(engine, f"the model does something vmap cannot: {cause}", cause)
        return "vmap"

    def _fall_back(self, engine: str, why: str, cause: Exception | None = None) -> str:
        if engine == "vmap":
            raise ConfigError(f"engine='vmap' cannot run this: {why}; use engine='loop'") from cause
        return "loop"

    def _exchanges(self) -> tuple[Exchange, ...]:
        return (*self.algorithm.opening(), *self.algorithm.exchanges())

    def _first_batch(self, client: int) -> Draws:
        return self.source.draw(("round",), client, 0, 1)

    def _gradient_work(self) -> float:
        """Floating-point operations of one gradient: a number that does not depend on the
        machine or its load, so that the choice, and with it every digit, is reproducible."""
        from torch.utils.flop_counter import FlopCounterMode

        draws = tree.map(lambda leaf: leaf.to(self.objective.x0.device), self._first_batch(0))
        (batch,) = ClientBatches(self.source.gather, draws)
        counter = FlopCounterMode(display=False)
        with counter:
            self.objective.evaluate(
                self.objective.x0, batch, self.objective.start(), functional=False
            )
        return float(counter.get_total_flops())

    def _try_vmap(self) -> None:
        two = [0, min(1, self.population - 1)]
        device = self.objective.x0.device
        draws = tree.map(
            lambda leaf: leaf.to(device), tree.stack([self._first_batch(c) for c in two])
        )
        memory = tree.map(lambda leaf: torch.stack([leaf, leaf]), self.objective.start())

        def one(draws: Draws, memory: Memory) -> Tensor:
            (batch,) = ClientBatches(self.source.gather, draws)
            x = self.objective.x0
            return self.objective.evaluate(x, batch, memory, functional=True).gradient

        torch.func.vmap(one)(draws, memory)


class Work:
    """Gradient evaluations and samples of several clients."""

    def __init__(self) -> None:
        self.evaluations = 0
        self.samples = 0

    def add(self, oracle: Oracle, clients: int = 1) -> None:
        self.evaluations += clients * oracle.evaluations
        self.samples += clients * oracle.samples


def _check_rows(clients: Sequence[int], losses: Tensor, message: Any) -> None:
    good = torch.isfinite(losses)
    for leaf in tree.leaves(message):
        if leaf.is_floating_point():
            good = good & torch.isfinite(leaf.reshape(len(clients), -1)).all(1)
    for row in (~good).nonzero().flatten().tolist():
        _check(clients[row], losses[row], tree.take(message, row))


def _check(client: int, loss: Tensor, message: Any) -> None:
    if not torch.isfinite(loss):
        raise NotFinite(client, "loss")
    if not tree.finite(message):
        raise NotFinite(client, "message")
