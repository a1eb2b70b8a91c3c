"""All clients run in this process, with one of three back ends: `loop`, `vmap`, `native` (C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, Exchange, HasX
from fafed.data.sources.examples import Source
from fafed.engines import backends
from fafed.engines.base import ClientState, Counts, Engine, Reply, Sent, Snapshot
from fafed.engines.mean import Mean
from fafed.engines.states import ClientStates
from fafed.engines.worker_pool import WorkerPool
from fafed.kernels.malloc import return_memory
from fafed.objectives.base import Objective

LARGE_BYTES = 2**25  # models of at least this size may return freed memory to the system


@dataclass
class Sums(Counts):
    """Weighted sums over some clients. The reply is made from them."""

    mean: Mean[Sent] = field(default_factory=Mean)


class Simulation(Engine):
    """Clients that live in this process."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        objective: Objective,
        source: Source,
        *,
        weights: Sequence[float],
        steps: int,
        engine: str = "auto",
        workers: int | None = None,
        threads: int = 1,
    ) -> None:
        self.task = backends.Task(algorithm, objective, source, list(weights), steps)
        self.backend = backends.choose(engine, self.task)
        self.kept = ClientStates(algorithm, self.population, objective.x0)
        self.undoes = self.kept.undoes
        self.worker_pool = WorkerPool(workers, threads)

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def why(self) -> str:
        """Why this back end."""
        return self.backend.why

    @property
    def population(self) -> int:
        return len(self.task.weights)

    @property
    def objective(self) -> Objective:
        return self.task.objective

    def deliver(
        self,
        exchange: Exchange,
        shared: HasX,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        opening: bool,
    ) -> Reply:
        return self.reply(exchange, self.collect(exchange, shared, buffers, clients, step), clients)

    def collect(
        self,
        exchange: Exchange,
        shared: HasX,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
    ) -> Sums:
        """Run these clients and add up their messages, in the order of the clients."""
        self.kept.refuse_spoilt()
        down = exchange.send(shared)
        sums = Sums(tree.nbytes((down, buffers)))
        large = tree.nbytes(self.objective.x0) >= LARGE_BYTES
        jobs = [
            partial(self.backend.work, exchange, down, buffers, group, step, self.kept)
            for group in self.backend.groups(clients, self.kept)
        ]
        for found in self.worker_pool.in_order(jobs):
            self.kept.keep(found.rows)
            if found.mean is None:
                (client,) = found.rows
                sums.mean.add(found.message, self.task.weights[client])
            else:
                sums.mean.merge(found.mean)
            sums.loss += found.loss
            sums.evaluations += found.evaluations
            sums.samples += found.samples
            for client in found.without_loss:
                sums.without_loss += 1
                sums.without_weight += self.task.weights[client]
            message, own = found.message
            sums.up = self.task.algorithm.message_bytes(message) + tree.nbytes(own)
            if large:
                del found, message, own
                return_memory()
        return sums

    def reply(self, exchange: Exchange, sums: Sums, clients: Sequence[int]) -> Reply:
        """The reply for the round loop, from the sums over these clients."""
        return sums.reply(
            exchange,
            sums.mean.value(),
            clients,
            self.task.weights,
            steps=self.task.steps,
            units=self.task.source.units,
        )

    def commit(self) -> None:
        self.kept.commit()

    def rollback(self) -> None:
        self.kept.rollback()

    @property
    def states(self) -> list[ClientState | None]:
        """The state of each client; None for a client that has not taken part yet."""
        return self.kept.read()

    def snapshot(self) -> Snapshot:
        return Snapshot(self.states, {})

    def restore(self, snapshot: Snapshot) -> None:
        self.kept.write(snapshot.states)
