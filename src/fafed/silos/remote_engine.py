"""An engine whose clients are real silos.

The numbers are those of the loop back end: messages are added in the order of the clients. A silo
that misses the deadline, or whose answer is refused, is left out of the round, like a failing
client in simulation. A silo that has failed too often is not asked again. With fewer than
`min_silos` the run stops.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, Exchange, HasX
from fafed.core.batch import Batch
from fafed.core.gradient import zero_grad
from fafed.core.records import higher_is_better, summary
from fafed.core.tree import Tree
from fafed.engines.base import Counts, Engine, NotFinite, Reply, Sent, Snapshot, StateLost
from fafed.engines.wire import Channel, Wiring
from fafed.files import Json
from fafed.objectives.base import Objective
from fafed.silos import compressed, memory, messages
from fafed.silos.bounds import Bounds, Guard
from fafed.silos.messages import Content, ExchangeId, Facts, Message, Refused, Shapes
from fafed.silos.server import Mailbox, TooFew, log
from fafed.training.loop import Absent


class Given(NamedTuple):
    """One client's answer."""

    message: Tree
    buffers: tuple[Tensor, ...]
    loss: float | None  # None: all its labels were ignored
    evaluations: int
    samples: int


class Spent(NamedTuple):
    """A silo's epsilon in this run, by its own count."""

    epsilon: float
    after_next: float  # after one more round

    @classmethod
    def of(cls, facts: Facts) -> Spent:
        both = (float(messages.number(facts, name)) for name in ("epsilon", "next_epsilon"))
        return cls(*(max(0.0, one) for one in both))


NAME = "silos"


class Silos(Engine):
    """Clients that are silos, each with its own data and disk."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        objective: Objective,
        mailbox: Mailbox,
        *,
        run: str,
        weights: Sequence[float],
        steps: int,
        units: int | None,
        epoch_steps: int,
        bounds: Bounds | None = None,
        sends: Sequence[Sequence[str]] = (),
        wiring: Wiring | None = None,
    ) -> None:
        """sends: the numbers about the server's model that each silo sends. wiring: how messages
        are compressed; None: not at all."""
        self.wiring = wiring
        self.channel: Channel | None = None  # of the current exchange
        self.sends = {client: list(names) for client, names in enumerate(sends) if names}
        self.algorithm = algorithm
        self._objective = objective
        self.mailbox = mailbox
        self.federation = mailbox.federation
        self.run = run
        self.weights = list(weights)
        self.steps = steps
        self.units = units
        self.epoch_steps = epoch_steps
        self.counted: dict[int, list[int | str]] = {}  # client -> the state that counts: its tag
        self.guard = Guard(bounds or Bounds())
        self.spent: dict[int, Spent] = {}  # client -> what it has said of its privacy budget
        self.lost: dict[int, int] = {}  # client -> the round in which it last lost its state
        # shapes that were seen before: of a local state, a message and buffers
        self.cache: dict[object, tuple[Tree, Tree, tuple[Tensor, ...]]] = {}
        self.ghost: Tree = ()  # the shape of what a client keeps after the last exchange
        self.rollback()

    @property
    def population(self) -> int:
        return len(self.weights)

    @property
    def name(self) -> str:
        return NAME

    @property
    def objective(self) -> Objective:
        return self._objective

    @property
    def epsilon(self) -> float:  # type: ignore[override]
        return max((one.epsilon for one in self.spent.values()), default=0.0)

    @property
    def next_epsilon(self) -> float:  # type: ignore[override]
        """No single silo can end the run: it only stops if too few silos can go on."""
        known = [one.after_next for one in self.spent.values()]
        told = sorted([*known, *(0.0 for _ in range(self.population - len(known)))])
        return told[self.least_silos() - 1]

    def least_silos(self) -> int:
        """With fewer silos there is no round."""
        everyone = self.algorithm.requires_all_clients
        return self.population if everyone else self.federation.min_silos

    def hear(self, client: int, facts: Facts) -> None:
        """Take what a silo says of its privacy budget, if it says anything."""
        if "epsilon" in facts:
            self.spent[client] = Spent.of(facts)

    def snapshot(self) -> Snapshot:
        """States stay with the silos. A silo's state is valid only if its answer was accepted. The
        notes say which state is valid."""
        notes = {str(client): tag for client, tag in self.counted.items()}
        if self.wiring is not None:
            notes |= self.wiring.notes()
        return Snapshot([None] * self.population, notes)

    def restore(self, snapshot: Snapshot) -> None:
        notes = dict(snapshot.notes)
        scales = notes.pop("scales", [])
        if self.wiring is not None:
            self.wiring.restore({"scales": scales})
        self.counted = {int(client): list(tag) for client, tag in notes.items()}

    def commit(self) -> None:
        self.counted |= self.pending
        if self.wiring is not None:
            self.wiring.commit()
        self.rollback()

    def rollback(self) -> None:
        if self.wiring is not None:
            self.wiring.rollback()
        self.pending: dict[int, list[int | str]] = {}
        self.index = 0  # of the exchange in the round
        self.opening = False  # whether the round begins with the opening exchanges
        self.attempt = secrets.token_hex(8)

    def deliver(
        self,
        exchange: Exchange,
        shared: HasX,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        step: int,
        opening: bool,
    ) -> Reply:
        self.opening = opening
        down = exchange.send(shared)
        place = ExchangeId(self.run, step // self.steps + 1, self.index, self.attempt)
        if self.wiring is not None:
            self.channel = self.wiring.channel(down, step, opening)
        given = self._given(exchange, down, buffers, clients, place)
        self._enough(len(given), f"round {place.round}")
        self.pending = {c: [place.round, place.exchange, place.attempt] for c in given}
        self.index += 1
        weights = [self.weights[client] for client in given]
        message, means, up = self._mean(list(given.values()), weights, shared.x.device)
        losses = [(w, one.loss) for w, one in zip(weights, given.values(), strict=True)]
        without = [w for w, loss in losses if loss is None]
        counts = Counts(
            down=tree.nbytes((down, buffers)),
            up=up,
            loss=sum(w * loss for w, loss in losses if loss is not None),
            without_loss=len(without),
            without_weight=sum(without),
            evaluations=sum(one.evaluations for one in given.values()),
            samples=sum(one.samples for one in given.values()),
        )
        reply = counts.reply(
            exchange,
            (message, means),
            list(given),
            self.weights,
            steps=self.steps,
            units=self.units,
        )
        return reply._replace(answered=tuple(given))

    def _mean(
        self, given: Sequence[Given], weights: Sequence[float], device: torch.device
    ) -> tuple[Tree, tuple[Tensor, ...], int]:
        """The means of messages and buffers, and the bytes of one answer."""
        folder, channel = self.mailbox.folder, self.channel
        if channel is None:
            answers = [(one.message, one.buffers) for one in given]
            mean = tree.map(lambda leaf: leaf.to(device), memory.mean(answers, weights, folder))
            return *mean, tree.nbytes(answers[-1])
        arrived = [
            (one.message, one.buffers, compressed.largest(channel, one.message)) for one in given
        ]
        whole = tree.map(lambda leaf: leaf.to(device), memory.mean(arrived, weights, folder))
        return *channel.finish(whole), channel.nbytes() + tree.nbytes(arrived[-1][1])

    def _given(
        self,
        exchange: Exchange,
        down: HasX,
        buffers: tuple[Tensor, ...],
        clients: Sequence[int],
        place: ExchangeId,
    ) -> dict[int, Given]:
        """The answers, in the order of the clients."""
        asked = self._asked(clients, place)
        like = self._like(exchange, down, buffers, place)
        packed = messages.pack((down, buffers))
        requests = {self.federation.silos[c]: self._request(place, c, packed) for c in asked}
        settled: dict[int, Given | NotFinite] = {}
        forgot = []
        for silo, found in self.mailbox.ask(
            requests, place, REPLIES | {"answer": like[1]}, packed.digest, self.federation.deadline
        ):
            client = self.federation.silos.index(silo)
            if found is None:
                continue  # already logged
            if found.kind == "lost" and self._may_have_lost(client, place):
                forgot.append(client)
            elif (one := self._taken(client, found, like[0])) is not None:
                settled[client] = one
        self._count_refused(asked, place)
        if forgot:
            self._forget(forgot, place)
        given = {c: one for c in asked if isinstance(one := settled.get(c), Given)}
        for client, why in self._beyond(given, (down, buffers), place).items():
            del given[client]
            self._refuse(client, place, why)
        diverged = [one for c in asked if isinstance(one := settled.get(c), NotFinite)]
        if diverged and (
            self.algorithm.requires_all_clients or len(given) < self.federation.min_silos
        ):
            raise diverged[0]
        return given

    def _asked(self, clients: Sequence[int], place: ExchangeId) -> list[int]:
        """The clients that are there."""
        here = set(self.federation.silos) & set(self.mailbox.transport.present())
        wanted = [c for c in clients if not self.guard.out(c)]
        asked = [c for c in wanted if self.federation.silos[c] in here]
        absent = [self.federation.silos[c] for c in wanted if c not in asked]
        for silo in absent:
            log.warning("round %d: silo %r is not there", place.round, silo)
        if absent and self.algorithm.requires_all_clients:
            raise Absent(
                f"round {place.round}: {type(self.algorithm).__name__} needs every silo in every "
                f"round, and {', '.join(absent)} is not there: bring it back and go on, or begin a "
                "new run without it"
            )
        self._enough(len(asked), f"round {place.round}")
        return asked

    def _beyond(
        self, given: Mapping[int, Given], down: object, place: ExchangeId
    ) -> dict[int, str]:
        """Client -> reason, for answers that are too large for the mean."""
        if self.population == 1:
            return {}  # there is only one silo
        whole = (lambda message: message) if self.channel is None else self.channel.whole
        answers = {client: (whole(one.message), one.buffers) for client, one in given.items()}
        key = place.round == 1, place.exchange
        own = self.algorithm
        return self.guard.refused(key, answers, down, own.squares, own.products)

    def _refuse(self, client: int, place: ExchangeId, why: str) -> None:
        silo = self.federation.silos[client]
        log.warning("round %d: refused a message of %r: %s", place.round, silo, why)
        self.mailbox.audit.note("refused", silo, "answer", place, 0, "", why=why)
        self._failed(client, place)

    def _failed(self, client: int, place: ExchangeId) -> None:
        if self.guard.failure(client):
            log.error(
                "round %d: silo %r has failed %d times and is asked no more; begin again to let it "
                "back in",
                place.round,
                self.federation.silos[client],
                self.guard.bounds.failures,
            )

    def _count_refused(self, asked: Sequence[int], place: ExchangeId) -> None:
        """Count an answer that was refused before it was read as a failure, too. A silo that does
        not answer has not failed."""
        for client in asked:
            if self.federation.silos[client] in self.mailbox.refused:
                self._failed(client, place)

    def _may_have_lost(self, client: int, place: ExchangeId) -> bool:
        """Whether a claim to have lost the state is accepted. The silo must have had a state, and
        may lose it once in a round, because each time the round is repeated for all silos."""
        had = client in (self.pending if place.exchange else self.counted)
        return had and self.lost.get(client) != place.round

    def _forget(self, clients: Sequence[int], place: ExchangeId) -> None:
        for client in clients:
            silo = self.federation.silos[client]
            log.warning(
                "round %d: silo %r has lost its state of the run; it joins as a new one",
                place.round,
                silo,
            )
            self.counted.pop(client, None)
            self.lost[client] = place.round
            self._failed(client, place)
        raise StateLost(clients)

    def _request(self, place: ExchangeId, client: int, packed: messages.Packed) -> Message:
        base = (self.pending if place.exchange else self.counted).get(client)
        facts: dict[str, Json] = {
            "base": base,
            "epoch_steps": self.epoch_steps,
            "opening": self.opening,
        }
        if self.wiring is not None and self.channel is not None:
            facts["scales"] = self.wiring.told(self.channel)
        return messages.write("visit", place, facts, packed)

    def _taken(self, client: int, found: Content, like: Sent) -> Given | NotFinite | None:
        """The content of an answer. None if it is not a valid answer, which counts as a failure."""
        silo, facts, number = self.federation.silos[client], found.facts, messages.number
        if found.kind == "answer":
            try:
                message, buffers = compressed.unpacked(self.channel, found.tensors, like)
                none = "loss" in facts and facts["loss"] is None
                self.hear(client, facts)
                return Given(
                    message,
                    buffers,
                    None if none else float(number(facts, "loss")),
                    number(facts, "evaluations", whole=True, low=1, high=2**40),
                    number(facts, "samples", whole=True, low=1, high=2**40),
                )
            except Refused as why:
                self._refuse(client, found.place, str(why))
                return None
        told = messages.clean(facts.get("why", facts.get("error", "")))
        log.warning("round %d: silo %r %s: %s", found.place.round, silo, found.kind, told)
        self._failed(client, found.place)
        if found.kind == "diverged":
            return NotFinite(client, "loss" if facts.get("what") == "loss" else "message")
        return None

    def evaluated(
        self, x: Tensor, buffers: tuple[Tensor, ...], round: int
    ) -> dict[str, Mapping[str, Any]]:
        """The server's model on the rows that silos hold out, as far as they send it: a summary
        over the silos that did. A silo that does not answer is left out."""
        place = ExchangeId(self.run, round, self.index, self.attempt)
        here = set(self.mailbox.transport.present())
        silos = {c: self.federation.silos[c] for c in self.sends if not self.guard.out(c)}
        asked = {c: silo for c, silo in silos.items() if silo in here}
        if not asked:
            return {}
        packed = messages.pack((x, buffers))
        requests = {silo: messages.write("measure", place, {}, packed) for silo in asked.values()}
        kinds: dict[str, Shapes] = {"measured": {}, "refused": {}, "failed": {}}
        told: dict[int, tuple[int, dict[str, float]]] = {}
        for silo, found in self.mailbox.ask(
            requests, place, kinds, packed.digest, self.federation.deadline
        ):
            client = self.federation.silos.index(silo)
            if found is not None and (one := self._numbers(client, found)) is not None:
                told[client] = one
        self._count_refused(list(asked), place)
        clients = sorted(told)
        for index, why in self.guard.too_many([told[c][0] for c in clients]).items():
            self._refuse(clients[index], place, why)
            del told[clients[index]]
        return self._summaries(told)

    def _numbers(self, client: int, found: Content) -> tuple[int, dict[str, float]] | None:
        """How many rows a silo measured on, and its numbers; NaN for one that does not exist."""
        silo = self.federation.silos[client]
        if found.kind != "measured":
            why = messages.clean(found.facts.get("why", found.facts.get("error", "")))
            log.warning("round %d: silo %r %s: %s", found.place.round, silo, found.kind, why)
            return None
        try:
            examples = messages.number(found.facts, "examples", whole=True, low=1, high=2**40)
            numbers = found.facts.get("numbers")
            if not isinstance(numbers, dict) or set(numbers) != set(self.sends[client]):
                raise Refused(
                    f"it measured {messages.clean(numbers, 80)}, expected {self.sends[client]}"
                )
            return examples, {
                name: math.nan if value is None else float(messages.number(numbers, name))
                for name, value in numbers.items()
            }
        except Refused as why:
            self._refuse(client, found.place, str(why))
            return None

    def _summaries(
        self, told: Mapping[int, tuple[int, Mapping[str, float]]]
    ) -> dict[str, Mapping[str, Any]]:
        if not told:
            return {}
        names = dict.fromkeys(name for own in self.sends.values() for name in own)
        nothing: tuple[int, Mapping[str, float]] = (0, {})
        rows = [told.get(client, nothing) for client in range(self.population)]
        columns = {name: [own.get(name, math.nan) for _, own in rows] for name in names}
        examples = [count for count, _ in rows]
        return {
            "clients_test": {
                name: summary(column, examples, higher=higher_is_better(name))
                for name, column in columns.items()
            },
            "client_values": {"clients_test": columns},
        }

    def _like(
        self, exchange: Exchange, down: HasX, buffers: tuple[Tensor, ...], place: ExchangeId
    ) -> tuple[Sent, Shapes]:
        """The shape of an answer. A client makes one step without data to find it."""
        sizes = tuple(leaf.shape for leaf in tree.leaves(down))
        key = (self.opening, place.exchange, sizes)
        if key not in self.cache:
            try:  # without numbers it costs nothing
                done = self._tried(exchange, tree.map(lambda leaf: leaf.to("meta"), down), place)
            except (RuntimeError, NotImplementedError):  # the algorithm needs numbers
                done = self._tried(exchange, down, place)
            self.cache[key] = tree.map(lambda leaf: leaf.to("meta"), (*done, buffers))
        self.ghost, message, own = self.cache[key]
        return (message, own), compressed.shapes(self.channel, (message, own))

    def _tried(self, exchange: Exchange, down: HasX, place: ExchangeId) -> tuple[Tree, Tree]:
        if place.exchange:
            device = tree.leaves(down)[0].device
            local = tree.map(lambda leaf: torch.zeros_like(leaf, device=device), self.ghost)
        else:
            local = self.algorithm.join(down.x)
        return exchange.client(zero_grad, down, local, _Nothing())

    def _enough(self, n: int, when: str) -> None:
        if n < self.federation.min_silos:
            raise TooFew(
                f"{when}: {n} of {self.population} silos, and the run must have "
                f"{self.federation.min_silos} (min_silos): bring them back and go on; what is "
                "finished is saved"
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


REPLIES: dict[str, Shapes] = {"lost": {}, "refused": {}, "failed": {}, "diverged": {}}
