"""All clients run in this process, with one of three back ends: `loop`, `vmap`, `native` (C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, Exchange, HasX
from fafed.core.tree import Tree
from fafed.core.wire import Wire
from fafed.data.sources.base import Source
from fafed.engines import backends
from fafed.engines.answered import AnsweredMean
from fafed.engines.base import ClientState, Counts, Engine, Reply, Sent, Snapshot
from fafed.engines.encoded import ATTEMPTS, Encoded, EncodedMean
from fafed.engines.mean import Mean
from fafed.engines.private_mean import PrivateMean, visit_without_data
from fafed.engines.states import ClientStates, Row
from fafed.engines.wire import WireMean, Wiring
from fafed.engines.worker_pool import WorkerPool
from fafed.kernels.malloc import return_memory
from fafed.objectives.base import Objective
from fafed.privacy.clients import ClientNoise
from fafed.privacy.encoding import Encoding

LARGE_BYTES = 2**25  # models of at least this size may return freed memory to the system


@dataclass
class Sums(Counts):
    """Weighted sums over some clients. The reply is made from them."""

    mean: Mean[Sent] = field(default_factory=Mean)
    rows: dict[int, Row] = field(
        default_factory=dict
    )  # new states of clients that are not kept yet


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
        encoding: Encoding | None = None,
        noise: ClientNoise | None = None,
        wire: Wire | None = None,
        seed: int = 0,
    ) -> None:
        """encoding: messages are added as integers. The seed decides their stochastic rounding.
        noise: messages are clipped, and their mean is private for every client.
        wire: messages are compressed."""
        self.task = backends.Task(algorithm, objective, source, list(weights), steps)
        self.backend = backends.choose(engine, self.task)
        self.wiring: Wiring | None = None
        if wire is not None:
            about: dict[str, int] = {"seed": seed, "steps": steps, "population": self.population}
            self.wiring = Wiring(wire, algorithm, objective.x0, **about)
            self.nothing_owed = self.wiring.nothing_owed(objective.x0)
        self.kept = ClientStates(algorithm, self.population, objective.x0, self.nothing_owed)
        self.undoes = self.kept.undoes
        self.worker_pool = WorkerPool(workers, threads)
        self.place = 0  # of the exchange in its round
        self.noise = noise
        self.invited = 0  # clients of the current exchange, on all ranks
        self.stand_ins: dict[int, Tree] = {}  # exchange -> the state of a client without data
        self.encoded: Encoded | None = None
        if encoding is not None:
            self.encoded = Encoded(encoding, algorithm, weights, seed)

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
        self.invited = len(clients)
        for attempt in range(ATTEMPTS):
            sums = self.collect(exchange, shared, buffers, clients, step, opening)
            if attempt == ATTEMPTS - 1 or not self.too_large(sums):
                break
        return self.reply(exchange, sums, clients)

    def collect(
        self,
        exchange: Exchange,
        shared: HasX,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        opening: bool,
    ) -> Sums:
        """Run these clients and add up their messages, in the order of the clients."""
        self.kept.refuse_spoilt()
        self.objective.exchange = self.place
        down = exchange.send(shared)
        sums = Sums(tree.nbytes((down, buffers)))
        if self.encoded is not None:
            sums.mean = EncodedMean(self.encoded.encoder(step, opening), buffers)
        elif self.noise is not None:
            sums.mean = self.private_mean(self.noise, exchange, down, step)
        elif self.wiring is not None:
            sums.mean = self.wire_mean(self.wiring, down, buffers, step, opening)
        large = tree.nbytes(self.objective.x0) >= LARGE_BYTES
        jobs = [
            partial(
                self.backend.work,
                *(exchange, down, buffers, group, step, self.kept),
                sums.mean.for_group(group) if isinstance(sums.mean, AnsweredMean) else None,
            )
            for group in self.backend.groups(clients, self.kept)
        ]
        for found in self.worker_pool.in_order(jobs):
            if self.encoded is None:
                self.kept.keep(found.rows)
            else:
                sums.rows |= found.rows
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
            if isinstance(sums.mean, AnsweredMean):
                sums.up = sums.mean.nbytes
            if large:
                del found, message, own
                return_memory()
        return sums

    def private_mean(
        self, noise: ClientNoise, exchange: Exchange, down: HasX, step: int
    ) -> PrivateMean:
        algorithm, steps = self.task.algorithm, self.task.steps
        local = self.stand_ins[self.place - 1] if self.place else algorithm.join(down.x)
        self.stand_ins[self.place], reference = visit_without_data(exchange, down, local, steps)
        key = f"{step} {self.place}"
        return PrivateMean(noise, reference, algorithm.squares, self.invited, key)

    def wire_mean(
        self, wiring: Wiring, down: HasX, buffers: tuple[Tensor, ...], step: int, opening: bool
    ) -> WireMean:
        return WireMean(wiring.channel(down, step, opening), self.task.weights, buffers)

    def too_large(self, sums: Sums) -> bool:
        """Whether the exchange must be made again, with larger bounds of its messages."""
        return self.encoded is not None and self.encoded.too_large(_encoded(sums))

    def reply(self, exchange: Exchange, sums: Sums, clients: Sequence[int]) -> Reply:
        """The reply for the round loop, from the sums over these clients."""
        self.place += 1
        weights, absent = self.task.weights, set[int]()
        if self.encoded is None:
            value = sums.mean.value()
        else:
            weights, absent = self.encoded.weights, _encoded(sums).absent
            value = self.encoded.finish(_encoded(sums), sums, clients)
            self.kept.keep({c: row for c, row in sums.rows.items() if c not in absent})
        answered = tuple(client for client in clients if client not in absent)
        found = sums.reply(
            exchange,
            value,
            answered,
            weights,
            steps=self.task.steps,
            units=self.task.source.units,
        )
        if self.noise is not None:  # how many took part is not told, and neither is their loss
            clients_expected = max(1, round(self.noise.expected))
            told = found.info._replace(clients=clients_expected, share=self.noise.rate)
            found = found._replace(info=told, loss=None)
        return found._replace(answered=answered) if absent else found

    def commit(self) -> None:
        self.kept.commit()
        self.place = 0
        for memory in self.memories:
            memory.commit()

    def rollback(self) -> None:
        self.kept.rollback()
        self.place = 0
        for memory in self.memories:
            memory.rollback()

    @property
    def memories(self) -> list[Encoded | Wiring]:
        """What the server remembers of messages from round to round."""
        return [memory for memory in (self.encoded, self.wiring) if memory is not None]

    def close(self) -> None:
        self.task.source.close()

    @property
    def states(self) -> list[ClientState | None]:
        """The state of each client; None for a client that has not taken part yet."""
        return self.kept.read()

    def snapshot(self) -> Snapshot:
        notes: dict[str, list[int | str]] = {}
        for memory in self.memories:
            notes |= memory.notes()
        return Snapshot(self.states, notes)

    def restore(self, snapshot: Snapshot) -> None:
        self.kept.write(snapshot.states)
        for memory in self.memories:
            memory.restore(snapshot.notes)


def _encoded(sums: Sums) -> EncodedMean:
    assert isinstance(sums.mean, EncodedMean)
    return sums.mean
