"""Clients on several processes or machines, with torch.distributed.

Each rank is a simulation of the clients that it hosts. An exchange ends with one all-reduce of one
flat float64 buffer: the sums over the clients. From these sums every rank makes the reply and
computes the server's step itself. An error on one rank travels in the same buffer. So all ranks
discard the round together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import NoReturn

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import Exchange, HasX
from fafed.core.gradient import zero_grad
from fafed.core.tree import Tree
from fafed.data.sources.base import ClientBatches
from fafed.engines.base import ClientState, Engine, NotFinite, Reply, Snapshot
from fafed.engines.encoded import ATTEMPTS, EncodedMean
from fafed.engines.ranks import RankFailed, Ranks
from fafed.engines.simulation import Simulation, Sums
from fafed.objectives.base import Objective

PARCEL = 2**26  # bytes: clients' states are sent in pieces of about this size


class Distributed(Engine):
    """The clients of all ranks. This rank computes its own clients."""

    undoes = False  # one rank alone cannot discard a round

    def __init__(self, simulation: Simulation, ranks: Ranks) -> None:
        self.simulation = simulation
        self.ranks: Ranks = ranks
        self.nothing_owed = simulation.nothing_owed
        self.nobody: Tree | None = None  # local state of the client that is none, within a round

    @property
    def population(self) -> int:
        return self.simulation.population

    @property
    def name(self) -> str:
        return self.simulation.name

    @property
    def why(self) -> str:
        return self.simulation.why

    @property
    def objective(self) -> Objective:
        return self.simulation.objective

    def deliver(
        self,
        exchange: Exchange,
        shared: HasX,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        opening: bool,
    ) -> Reply:
        """Carry the exchange to these clients. They make the local steps step+1 .. step+q."""
        request = exchange, shared, buffers
        before = self.nobody
        self.simulation.invited = len(clients)
        for attempt in range(ATTEMPTS):
            self.nobody = before
            sums = self._sums(*request, clients, step, opening)
            if attempt == ATTEMPTS - 1 or not self.simulation.too_large(sums):
                break
        return self.simulation.reply(exchange, sums, clients)

    def _sums(
        self,
        exchange: Exchange,
        shared: HasX,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        opening: bool,
    ) -> Sums:
        """The sums over all ranks' clients."""
        own = [client for client in clients if self.ranks.hosts(client)]
        request = exchange, shared, buffers
        failure: Exception | None = None
        try:
            if own:
                sums = self.simulation.collect(*request, own, step, opening)
            else:
                sums = self._empty(*request, clients, step, opening)
        except Exception as error:  # the other ranks must know before it is raised
            failure, sums = error, self._empty(*request, own or clients, step, opening)
        self._add_up(sums, clients, failure)
        return sums

    def commit(self) -> None:
        self.nobody = None
        self.simulation.commit()

    def rollback(self) -> None:
        self.nobody = None
        self.simulation.rollback()

    def _add_up(self, sums: Sums, clients: Sequence[int], failure: Exception | None) -> None:
        """Replace the sums over this rank's clients by the sums over all ranks' clients."""
        totals, encoded = tree.leaves(sums.mean.total), isinstance(sums.mean, EncodedMean)
        sizes = [total.numel() for total in totals]
        facts = [sums.loss, sums.evaluations, sums.samples, sums.without_loss, sums.without_weight]
        if isinstance(sums.mean, EncodedMean):  # the facts are in the sum; who is absent is not
            facts = [c in sums.mean.absent for c in clients]
            facts += [name in sums.mean.beyond for name in sums.mean.exponents]
        failed = [0] * self.ranks.size  # rank -> 0, or 1 + the failed client
        if failure is not None:
            at = failure.client if isinstance(failure, NotFinite) else self.population
            failed[self.ranks.rank] = 1 + at
        device = self.objective.x0.device
        whole = encoded or totals[0].dtype == torch.int64
        kind = torch.int64 if whole else torch.float64
        tail = torch.tensor([*facts, *failed], dtype=kind, device=device)
        buffer = self.ranks.add(torch.cat([*(total.reshape(-1) for total in totals), tail]))
        *parts, tail = torch.split(buffer, [*sizes, len(tail)])
        facts, failed = tail.tolist()[: len(facts)], tail.tolist()[len(facts) :]
        if any(failed):
            self._give_up([int(at) for at in failed], failure)
        likes = zip(parts, totals, strict=True)
        sums.mean.total = tree.rebuilt(sums.mean.total, [p.view(t.shape) for p, t in likes])
        if isinstance(sums.mean, EncodedMean):
            absent, beyond = facts[: len(clients)], facts[len(clients) :]
            sums.mean.absent = set(compress(clients, absent))
            sums.mean.beyond = set(compress(sums.mean.exponents, beyond))
            return
        loss, evaluations, samples, without_loss, without_weight = facts
        sums.mean.weight = sum(self.simulation.task.weights[client] for client in clients)
        sums.loss, sums.evaluations, sums.samples = loss, int(evaluations), int(samples)
        sums.without_loss, sums.without_weight = int(without_loss), without_weight

    def _give_up(self, failed: Sequence[int], failure: Exception | None) -> NoReturn:
        """Raise on all ranks the error that comes first in a simulation."""
        _, first = min((at, rank) for rank, at in enumerate(failed) if at)
        where = (failure.client, failure.what) if isinstance(failure, NotFinite) else ()
        where, text = self.ranks.tell([where, f"{type(failure).__name__}: {failure}"], first)
        if failure is not None and first == self.ranks.rank:
            error = failure
        else:
            error = NotFinite(*where) if where else RankFailed(f"rank {first} has failed: {text}")
        self.ranks.agreed = error
        raise error

    def _empty(
        self,
        exchange: Exchange,
        shared: HasX,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        opening: bool,
    ) -> Sums:
        """The sums over no clients. A rank without clients must still know the shape of a message.
        So it runs a stand-in client with the batches of one of these clients and zero gradients.
        """
        algorithm, _, source, _, steps = self.simulation.task
        down, client, pending = exchange.send(shared), clients[0], self.simulation.kept.pending
        if client in pending:
            local = pending[client].state().local
        else:
            local = algorithm.join(shared.x) if self.nobody is None else self.nobody
        draws = source.draw(exchange.draw, client, step, steps)
        batches = ClientBatches(source.gather, draws)
        self.nobody, message = exchange.client(zero_grad, down, local, batches)
        up = algorithm.message_bytes(message) + tree.nbytes(buffers)
        sums = Sums(tree.nbytes((down, buffers)), up)
        if self.simulation.encoded is not None:
            sums.mean = EncodedMean(self.simulation.encoded.encoder(step, opening), buffers)
            sums.mean.start((message, buffers))
            sums.up = sums.mean.nbytes
            return sums
        if self.simulation.noise is not None:
            sums.mean = self.simulation.private_mean(self.simulation.noise, exchange, down, step)
            return sums
        if self.simulation.wiring is not None:
            wiring = self.simulation.wiring
            own = self.simulation.wire_mean(wiring, down, buffers, step, opening)
            own.start((message, buffers))
            sums.mean, sums.up = own, own.nbytes
            return sums
        sums.mean.add(tree.map(torch.zeros_like, (message, buffers)), 0.0)
        return sums

    # The states of the clients. Each is on the rank that hosts the client.

    @property
    def states(self) -> list[ClientState | None]:
        """The state of each client. On rank 0 these are all clients, while the other ranks
        `hand_over`. On another rank these are its own clients."""
        states = self.simulation.states
        if self.ranks.rank == 0:
            for other in range(1, self.ranks.size):
                for client, state in self._received(other):
                    states[client] = state
        return states

    def snapshot(self) -> Snapshot:
        return Snapshot(self.states, self.simulation.snapshot().notes)

    def restore(self, snapshot: Snapshot) -> None:
        self.simulation.restore(snapshot)

    def close(self) -> None:
        self.simulation.close()

    def hand_over(self) -> None:
        """Send the states of this rank's clients to rank 0."""
        self._send(_present(self.simulation.states), 0)

    def deal(self) -> None:
        """Rank 0 sends each state to the rank that hosts the client."""
        hosts = self.ranks.hosts
        states = self.simulation.states
        if self.ranks.rank:
            for client, state in self._received(0):
                states[client] = state
        else:
            for other in range(1, self.ranks.size):
                theirs = {c: s for c, s in _present(states).items() if hosts(c, other)}
                self._send(theirs, other)
            states = [s if hosts(c) else None for c, s in enumerate(states)]
        notes = self.simulation.snapshot().notes
        notes = self.ranks.tell(notes) if notes else notes
        self.simulation.restore(Snapshot(states, notes))

    def _send(self, states: Mapping[int, ClientState], to: int) -> None:
        for parcel in [*_parcels(states), {}]:  # an empty parcel marks the end
            leaves = {client: tree.leaves(state) for client, state in parcel.items()}
            note = [[client, len(own)] for client, own in leaves.items()]
            self.ranks.send(to, note, [leaf for own in leaves.values() for leaf in own])

    def _received(self, source: int) -> Iterator[tuple[int, ClientState]]:
        x = self.objective.x0
        new = ClientState(self.simulation.task.algorithm.join(x), (), self.nothing_owed)
        carrying = new._replace(hidden=self.objective.hidden_like())
        while True:
            note, leaves = self.ranks.receive(source)
            if not note:
                return
            rest = (leaf.to(x.device) for leaf in leaves)
            for client, count in note:
                like = new if count == len(tree.leaves(new)) else carrying
                yield client, tree.rebuilt(like, list(islice(rest, count)))


def _present(states: Sequence[ClientState | None]) -> dict[int, ClientState]:
    return {client: state for client, state in enumerate(states) if state is not None}


def _parcels(states: Mapping[int, ClientState]) -> Iterator[dict[int, ClientState]]:
    parcel: dict[int, ClientState] = {}
    size = 0
    for client, state in states.items():
        parcel[client] = state
        size += tree.nbytes(state)
        if size >= PARCEL:
            yield parcel
            parcel, size = {}, 0
    if parcel:
        yield parcel
