"""The server's side: an engine whose clients are silos elsewhere.

The numbers are those of the loop engine: messages are added in the order of the clients. Who does
not answer by the deadline, or sends what is refused, is left out of the round as a failing client
is in simulation; below `min_silos` the run stops.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fafed import tree
from fafed.algorithm import Algorithm, Batch, Exchange, Trip
from fafed.engines.contract import Forgotten, NotFinite, Reply
from fafed.errors import FafedError
from fafed.silos import messages
from fafed.silos.audit import Audit
from fafed.silos.messages import HEAD_LIMIT, Content, Message, Place, Refused, Shapes

log = logging.getLogger("fafed")


class TooFew(FafedError):
    """Fewer silos than the run must have."""


class Transport(Protocol):
    """What carries messages to silos: the only thing an engine's adapter must bring."""

    def present(self) -> Sequence[str]:
        """The silos that can be asked now."""

    def ask(
        self, requests: Mapping[str, Message], seconds: float, limit: int
    ) -> Iterator[tuple[str, Message | None]]:
        """Send each silo its request and yield the answers as they come, None for a silo that
        is known to be gone; ends when all are in or the time is over. No answer has more than
        `limit` bytes: one that claims to is not even taken in."""


@dataclass(frozen=True)
class Terms:
    """Who takes part, and how long a round waits for them."""

    silos: tuple[str, ...]  # in the order of the clients
    min_silos: int
    deadline: float = 3600.0  # seconds for one exchange
    start: float = 120.0  # seconds for the silos to come and load their data


class Post:
    """Messages out and in, each checked and written down."""

    def __init__(self, transport: Transport, terms: Terms, audit: Audit) -> None:
        self.transport = transport
        self.terms = terms
        self.audit = audit

    def ask(
        self,
        requests: Mapping[str, Message],
        place: Place,
        expected: Mapping[str, Shapes],
        digest: str,
        seconds: float,
    ) -> Iterator[tuple[str, Content | None]]:
        """The silos' answers as they come; None for one that is gone or refused."""
        for silo, request in requests.items():
            kind = messages.glance(request.head)["kind"]
            self.audit.note("sent", silo, kind, place, request.size, digest)
        limit = HEAD_LIMIT + max(_nbytes(table) for table in expected.values())
        waiting = set(requests)
        for silo, answer in self.transport.ask(requests, seconds, limit):
            waiting.discard(silo)
            if answer is None:
                log.warning("round %d: silo %r is gone; left out", place.round, silo)
                yield silo, None
                continue
            try:
                found = messages.read(answer, place, expected, limit)
            except Refused as why:
                log.warning("round %d: refused a message of %r: %s", place.round, silo, why)
                self.audit.note("refused", silo, "", place, answer.size, "", why=str(why))
                yield silo, None
                continue
            self.audit.note("received", silo, found.kind, place, answer.size, found.digest)
            answer.drop()
            yield silo, found
            del found
        for silo in sorted(waiting):
            log.warning(
                "round %d: silo %r did not answer within %g s; left out",
                place.round,
                silo,
                seconds,
            )


class Given(NamedTuple):
    """One client's answer."""

    message: Any
    buffers: tuple[Tensor, ...]
    loss: float
    evaluations: int
    samples: int


class Silos:
    """Clients that are silos, each with its own data and disk."""

    engine = "silos"

    def __init__(
        self,
        algorithm: Algorithm,
        objective: Any,
        post: Post,
        *,
        run: str,
        weights: Sequence[float],
        steps: int,
        units: int | None,
        epoch_steps: int,
    ) -> None:
        self.algorithm = algorithm
        self.objective = objective
        self.post = post
        self.terms = post.terms
        self.run = run
        self.weights = list(weights)
        self.steps = steps
        self.units = units
        self.epoch_steps = epoch_steps
        self.counted: dict[int, list[Any]] = {}  # client -> the state that counts: its tag
        self.states: list[None] = [None] * len(self.weights)  # they stay with the silos
        self.cache: dict[Any, Any] = {}  # shapes that were seen before
        self.ghost: Any = ()  # the shape of what a client keeps after the last exchange
        self.rollback()

    @property
    def population(self) -> int:
        return len(self.weights)

    @property
    def memo(self) -> dict[str, Any]:
        """What a checkpoint must know: a silo's state counts only if its answer did."""
        return {str(client): tag for client, tag in self.counted.items()}

    @memo.setter
    def memo(self, memo: Mapping[str, Any]) -> None:
        self.counted = {int(client): list(tag) for client, tag in memo.items()}

    def commit(self) -> None:
        self.counted |= self.pending
        self.rollback()

    def rollback(self) -> None:
        self.pending: dict[int, list[Any]] = {}
        self.index = 0  # of the exchange in the round
        self.attempt = secrets.token_hex(8)

    def deliver(
        self,
        exchange: Exchange,
        shared: Any,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
    ) -> Reply:
        down = exchange.send(shared)
        place = Place(self.run, step // self.steps + 1, self.index, self.attempt)
        given = self._given(exchange, down, buffers, clients, place)
        mean, loss, evaluations, samples, up = tree.Mean(), 0.0, 0, 0, 0
        answered = []
        for client, one in given:
            answered.append(client)
            mean.add((one.message, one.buffers), self.weights[client])
            loss += self.weights[client] * one.loss
            evaluations += one.evaluations
            samples += one.samples
            up = self.algorithm.message_bytes(one.message) + tree.nbytes(one.buffers)
            del one  # large, and the next is on its way
        self._enough(len(answered), f"round {place.round}")
        self.pending = {c: [place.round, place.exchange, place.attempt] for c in answered}
        self.index += 1
        message, means = tree.map(lambda leaf: leaf.to(shared.x.device), mean.value())
        n, steps = len(answered), self.steps if "round" in exchange.draw else 0
        return Reply(
            mean=message,
            buffers=means,
            trip=Trip(n, self.population, steps, mean.weight / sum(self.weights)),
            loss=loss / mean.weight if steps else None,
            gradients=evaluations if self.units is None else samples / self.units,
            samples=samples,
            bytes_up=n * up,
            bytes_down=n * tree.nbytes((down, buffers)),
            answered=tuple(answered),
        )

    def _given(
        self,
        exchange: Exchange,
        down: Any,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        place: Place,
    ) -> Iterator[tuple[int, Given]]:
        """The answers in the order of the clients, each as soon as it is its turn."""
        here = set(self.terms.silos) & set(self.post.transport.present())
        asked = [c for c in clients if self.terms.silos[c] in here]
        for absent in sorted(set(clients) - set(asked)):
            log.warning("round %d: silo %r is not there", place.round, self.terms.silos[absent])
        self._enough(len(asked), f"round {place.round}")
        like = self._like(exchange, down, buffers, place)
        packed = messages.pack((down, buffers))
        requests = {self.terms.silos[c]: self._request(place, c, packed) for c in asked}
        settled: dict[int, Given | NotFinite | None] = {}
        forgot, turn = [], 0
        for silo, found in self.post.ask(
            requests, place, _KINDS | {"answer": like[1]}, packed.digest, self.terms.deadline
        ):
            client = self.terms.silos.index(silo)
            settled[client] = None if found is None else self._taken(client, found, like[0])
            if found is not None and found.kind == "lost":
                forgot.append(client)
            del found
            while turn < len(asked) and asked[turn] in settled:
                yield from self._turn(asked[turn], settled.pop(asked[turn]))
                turn += 1
        if forgot:
            for client in forgot:
                log.warning(
                    "round %d: silo %r has lost its state of the run; it joins anew",
                    place.round,
                    self.terms.silos[client],
                )
                self.counted.pop(client, None)
            raise Forgotten(forgot)
        for client in asked[turn:]:  # behind one that never answered
            yield from self._turn(client, settled.get(client))

    @staticmethod
    def _turn(client: int, one: Given | NotFinite | None) -> Iterator[tuple[int, Given]]:
        if isinstance(one, NotFinite):
            raise one
        if one is not None:
            yield client, one

    def _request(self, place: Place, client: int, packed: messages.Packed) -> Message:
        base = (self.pending if place.exchange else self.counted).get(client)
        facts = {"base": base, "epoch_steps": self.epoch_steps}
        return messages.write("visit", place, facts, packed)

    def _taken(self, client: int, found: Content, like: Any) -> Given | NotFinite | None:
        silo, facts = self.terms.silos[client], found.facts
        if found.kind == "answer":
            try:
                message, buffers = tree.unflatten(like, found.tensors)
                return Given(
                    message,
                    buffers,
                    float(messages.number(facts, "loss")),
                    messages.number(facts, "evaluations", whole=True),
                    messages.number(facts, "samples", whole=True),
                )
            except Refused as why:
                log.warning("round %d: refused a message of %r: %s", found.place.round, silo, why)
        elif found.kind == "diverged":
            return NotFinite(client, "loss" if facts.get("what") == "loss" else "message")
        elif found.kind != "lost":
            told = str(facts.get("why", facts.get("error", "")))[:500]
            log.warning("round %d: silo %r %s: %s", found.place.round, silo, found.kind, told)
        return None

    def _like(
        self, exchange: Exchange, down: Any, buffers: tuple[Tensor, ...], place: Place
    ) -> tuple[Any, Shapes]:
        """What an answer looks like, found by letting a client do one step on nothing."""
        sizes = tuple(leaf.shape for leaf in tree.leaves(down))
        key = (place.round == 1, place.exchange, sizes)
        if key not in self.cache:
            try:  # without numbers it costs nothing
                done = self._tried(exchange, tree.map(lambda leaf: leaf.to("meta"), down), place)
            except (RuntimeError, NotImplementedError):  # one that looks at a number
                done = self._tried(exchange, down, place)
            self.cache[key] = tree.map(lambda leaf: leaf.to("meta"), (*done, buffers))
        self.ghost, message, own = self.cache[key]
        return (message, own), messages.shapes((message, own))

    def _tried(self, exchange: Exchange, down: Any, place: Place) -> tuple[Any, Any]:
        if place.exchange:
            device = tree.leaves(down)[0].device
            local = tree.map(lambda leaf: torch.zeros_like(leaf, device=device), self.ghost)
        else:
            local = self.algorithm.join(down.x)
        return exchange.client(lambda x, _: torch.zeros_like(x), down, local, _Nothing())

    def _enough(self, n: int, when: str) -> None:
        if n < self.terms.min_silos:
            raise TooFew(
                f"{when}: {n} of {self.population} silos, and the run must have "
                f"{self.terms.min_silos} (min_silos): bring them back and go on; what is finished "
                "is saved"
            )


class _Nothing:
    """Batches without data, for a client whose gradients are zero."""

    batch = Batch((), torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool))
    anchor = batch._replace(step=False)
    full = anchor

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Batch]:
        return iter((self.batch,))


_KINDS: dict[str, Shapes] = {"lost": {}, "refused": {}, "failed": {}, "diverged": {}}


def _nbytes(table: Shapes) -> int:
    return sum(torch.Size(shape or ()).numel() * dtype.itemsize for shape, dtype in table.values())
