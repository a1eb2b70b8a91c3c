"""All clients in this process, one after another or side by side.

The same algorithm code runs in all: `loop` calls it once per client, `vmap` once for a group of
clients under `torch.func.vmap`, and `native` is vmap with the gradients of small networks in C.
Results agree up to rounding. `auto` takes native where it can, then vmap where the model allows it
and a single gradient is so small that torch's own overhead dominates, else the loop.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fafed.core import tree
from fafed.core.algorithm import Algorithm, Exchange, exchanges_of_round
from fafed.data.sources.examples import ClientBatches, Draws, Source, draw_stacked
from fafed.engines.base import Counts, Reply
from fafed.engines.client import ClientState, check, visit
from fafed.engines.mean import Mean
from fafed.engines.worker_pool import WorkerPool
from fafed.errors import ConfigError, FafedError
from fafed.kernels.build import NoCompiler, library
from fafed.kernels.malloc import return_memory
from fafed.objectives import agreement
from fafed.objectives.base import Evaluation, Memory, Objective

log = logging.getLogger("fafed")

ENGINES = ("auto", "loop", "vmap", "native")
SMALL_GRADIENT = 3e7  # floating-point operations; measured by studies/performance/engine_choice.py
GROUPS = 2  # vmap: at least so many, for as many workers,
SLOW_BYTES, SLOW_GROUPS = 2**20, 20  # or so many, for models of this size, that all end together
GROUP_BYTES = 2**23  # vmap: parameters of the clients in one group; larger ones leave the cache
LARGE_BYTES = 2**25  # a vector after whose use memory may be returned; a client takes seconds
UNDO_BYTES = 2**30  # clients' states that are held twice while a round is under way


class Row(NamedTuple):
    """Where a client's state is: by itself, or a row of a group's, which saves restacking."""

    stacked: ClientState
    row: int | None = None

    def state(self) -> ClientState:
        return self.stacked if self.row is None else tree.take(self.stacked, self.row)


class Found(NamedTuple):
    """What a group of clients brings back."""

    rows: dict[int, Row]
    mean: Mean | None  # of a group; a single client's message is added as it comes
    message: Any  # of one client, with its buffers: the shape of them all
    loss: float  # weighted sum
    evaluations: int
    samples: int
    without_loss: Sequence[int] = ()  # clients all of whose labels were ignored


@dataclass
class Sums(Counts):
    """The weighted sums over some clients from which the reply is made."""

    mean: Mean = field(default_factory=Mean)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what torch's FlopCounterMode counts, but does not import torch's compiler for it:
    that takes a second."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.count += formula(*args, **(kwargs or {}), out_val=out)
        return out


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
        workers: int | None = None,
        threads: int = 1,
    ) -> None:
        self.algorithm = algorithm
        self.objective = objective
        self.source = source
        self.weights = list(weights)
        self.steps = steps
        self.kept: list[Row | None] = [None] * len(self.weights)
        self.pending: dict[int, Row] = {}  # of the round under way
        # Larger states are held once: a round changes them, and one that fails ends the run.
        states = self.population * tree.nbytes(algorithm.join(objective.x0))
        self.undoes = states <= UNDO_BYTES
        self.changed = self.spoilt = False
        self.engine = self._choose(engine)
        self.worker_pool = WorkerPool(workers, threads)

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
        opening: bool,
    ) -> Reply:
        """Carry the exchange to these clients; local steps step+1 .. step+q are theirs."""
        return self.reply(exchange, self.collect(exchange, shared, buffers, clients, step), clients)

    def collect(
        self,
        exchange: Exchange,
        shared: Any,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
    ) -> Sums:
        """Let these clients do their part, and add up what they send, in their order."""
        self._refuse_spoilt()
        down = exchange.send(shared)
        work = self._single if self.engine == "loop" else self._group
        sums = Sums(tree.nbytes((down, buffers)))
        large = tree.nbytes(self.objective.x0) >= LARGE_BYTES
        jobs = [
            partial(work, exchange, down, buffers, group, step) for group in self._groups(clients)
        ]
        for found in self.worker_pool.in_order(jobs):
            self._keep(found.rows)
            if found.mean is None:
                (client,) = found.rows
                sums.mean.add(found.message, self.weights[client])
            else:
                sums.mean.merge(found.mean)
            sums.loss += found.loss
            sums.evaluations += found.evaluations
            sums.samples += found.samples
            for client in found.without_loss:
                sums.without_loss += 1
                sums.without_weight += self.weights[client]
            message, own = found.message
            sums.up = self.algorithm.message_bytes(message) + tree.nbytes(own)
            if large:
                del found, message, own
                return_memory()
        return sums

    def reply(self, exchange: Exchange, sums: Sums, clients: Sequence[int]) -> Reply:
        """What the round loop gets to know of these clients' sums."""
        mean, units = sums.mean.value(), self.source.units
        return sums.reply(exchange, mean, clients, self.weights, steps=self.steps, units=units)

    @property
    def states(self) -> list[ClientState | None]:
        """What each client keeps; None for one that has not taken part yet."""
        self._refuse_spoilt()
        return [None if kept is None else kept.state() for kept in self.kept]

    @states.setter
    def states(self, states: Sequence[ClientState | None]) -> None:
        self.kept = [None if state is None else Row(state) for state in states]
        self.changed = self.spoilt = False

    def commit(self) -> None:
        for client, kept in self.pending.items():
            self.kept[client] = kept
        self.pending, self.changed = {}, False

    def rollback(self) -> None:
        self.pending, self.spoilt = {}, self.spoilt or self.changed

    def _keep(self, rows: dict[int, Row]) -> None:
        if self.undoes:
            self.pending |= rows
            return
        self.changed = True
        for client, row in rows.items():
            self.kept[client] = row

    def _refuse_spoilt(self) -> None:
        if self.spoilt:
            raise FafedError(
                "a round failed after it had changed the states of some clients, which together "
                f"are larger than {UNDO_BYTES >> 20} MiB and are held only once: go on from a "
                "checkpoint"
            )

    # What one worker does at a time: one client, or a group of them under vmap.

    def _single(
        self,
        exchange: Exchange,
        down: Any,
        buffers: tuple[Tensor, ...],
        group: Sequence[int],
        step: int,
    ) -> Found:
        (client,) = group
        draws = self.source.draw(exchange.draw, client, step, self.steps)
        batches = ClientBatches(self.source.gather, draws)
        state = self._state(client, down.x)
        found = visit(self.objective, exchange, down, buffers, state, batches)
        check(client, found.loss, found.message)
        return Found(
            {client: Row(found.state)},
            None,
            (found.message, found.buffers),
            self.weights[client] * float(found.loss),
            found.evaluations,
            found.samples,
            [] if found.has_loss else [client],
        )

    def _group(
        self,
        exchange: Exchange,
        down: Any,
        buffers: tuple[Tensor, ...],
        group: Sequence[int],
        step: int,
    ) -> Found:
        count: list[tuple[int, int]] = []
        gather = self.source.gather
        if self.engine == "native":
            gather = getattr(self.source, "pick", gather)

        def one(state: ClientState, draws: Draws, buffers: Any) -> Any:
            batches = ClientBatches(gather, draws)
            found = visit(
                self.objective, exchange, down, buffers, state, batches, engine=self.engine
            )
            count.append((found.evaluations, found.samples))
            return found.state, found.message, found.buffers, found.loss, found.has_loss

        states = self._stacked(group, down.x)
        draws = draw_stacked(self.source, exchange.draw, group, step, self.steps)
        own = tree.map(lambda leaf: leaf.expand(len(group), *leaf.shape).clone(), buffers)
        stacked, message, own, losses, has_loss = torch.func.vmap(one)(states, draws, own)
        weights = losses.new_tensor([self.weights[c] for c in group], dtype=torch.float64)
        mean = Mean()
        mean.add_stacked((message, own), weights)
        if not (torch.isfinite(losses).all() and tree.finite(mean.total)):
            for row, client in enumerate(group):  # a sum may overflow, so look who it is
                check(client, losses[row], tree.take(message, row))
        ((evaluations, samples),) = count
        return Found(
            {client: Row(stacked, row) for row, client in enumerate(group)},
            mean,
            tree.take((message, own), 0),
            float(weights.to(losses) @ losses),
            len(group) * evaluations,
            len(group) * samples,
            [c for c, has in zip(group, has_loss.tolist(), strict=True) if not has],
        )

    def _groups(self, clients: Sequence[int]) -> list[list[int]]:
        """Never a function of the number of workers: the digits must not be."""
        if self.engine == "loop":
            return [[client] for client in clients]
        model = tree.nbytes(self.objective.x0)
        least = GROUPS if model < SLOW_BYTES else SLOW_GROUPS
        size = max(1, min(GROUP_BYTES // model, -(-len(clients) // least)))
        groups = []
        for has_hidden in (False, True):  # states of one group must stack
            kind = [c for c in clients if self._has_hidden(c) is has_hidden]
            count = -(-len(kind) // size)
            count += count % 2 if 1 < count < len(kind) else 0  # two workers end together
            ends = [len(kind) * i // count for i in range(count + 1)] if count else []
            groups += [kind[i:j] for i, j in itertools.pairwise(ends)]
        return groups

    def _state(self, client: int, x: Tensor) -> ClientState:
        kept = self.pending.get(client) or self.kept[client]
        return ClientState(self.algorithm.join(x), ()) if kept is None else kept.state()

    def _has_hidden(self, client: int) -> bool:
        kept = self.pending.get(client) or self.kept[client]
        return kept is not None and bool(tree.leaves(kept.stacked.hidden))

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
        if engine != "vmap":
            why = self._no_native()
            if why is None:
                return "native"
            if engine == "native":
                return self._fall_back(engine, why)
        if engine == "auto" and (self.population == 1 or not self._small()):
            return "loop"
        try:
            why = self._vmap_differs()
        except Exception as cause:  # whatever the model does that vmap cannot
            return self._fall_back(engine, f"the model does something vmap cannot: {cause}", cause)
        if why is None:
            return "vmap"
        if engine == "auto":
            log.warning("vmap does not compute what the loop does and is not used (%s)", why)
        return self._fall_back(engine, f"vmap does not compute what the loop does ({why})")

    def _fall_back(self, engine: str, why: str, cause: Exception | None = None) -> str:
        if engine != "auto":
            raise ConfigError(f"engine={engine!r} cannot run this: {why}; use 'loop'") from cause
        return "loop"

    def _no_native(self) -> str | None:
        """Why the gradients cannot be computed in C, or None if they can."""
        network = getattr(self.objective, "network", None)
        if network is None:
            return str(getattr(self.objective, "not_native", "there is no module to recognise"))
        try:
            library(network.dtype)
        except NoCompiler as cause:
            return str(cause)
        return None

    def _exchanges(self) -> tuple[Exchange, ...]:
        return exchanges_of_round(self.algorithm, opening=True)

    def _first_batch(self, client: int) -> Draws:
        return self.source.draw(("round",), client, 0, 1)

    def _small(self) -> bool:
        """By the floating-point operations of one gradient: a number that does not depend on the
        machine or its load, so that the choice, and with it every digit, is reproducible. Those
        of a module that computes its loss itself are not torch's to count."""
        if getattr(self.objective, "fused", False):
            return False
        draws = tree.map(lambda leaf: leaf.to(self.objective.x0.device), self._first_batch(0))
        (batch,) = ClientBatches(self.source.gather, draws)
        operations = Operations()
        with operations:
            self.objective.evaluate(self.objective.x0, batch, self.objective.start(), engine="loop")
        return operations.count <= SMALL_GRADIENT

    def _vmap_differs(self) -> str | None:
        """What two clients would compute under vmap that the loop does not, or None."""
        objective = self.objective
        two = [self._first_batch(c) for c in (0, min(1, self.population - 1))]
        draws = [tree.map(lambda leaf: leaf.to(objective.x0.device), d) for d in two]

        def one(x: Tensor, draws: Draws, memory: Memory, engine: str = "vmap") -> Evaluation:
            (batch,) = ClientBatches(self.source.gather, draws)
            return objective.evaluate(x, batch, memory, engine=engine)

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
            return named(*(one(y, draws[c], objective.start(), "loop") for y, c in places))

        shapes = getattr(objective, "shapes", [(size,) for size in objective.sizes])
        dtype = getattr(objective, "dtype", objective.x0.dtype)
        return agreement.disagreement(fast, plain, objective.x0, shapes, dtype)
