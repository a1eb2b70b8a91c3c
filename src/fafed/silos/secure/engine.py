"""An engine whose clients are real silos, and whose server sees the sum of their messages alone.

The numbers are those of the simulation with `[privacy] secure = true`, to the last bit. A silo that
leaves is left out of the sum, whatever the step. With fewer silos than the threshold, or than
`min_silos`, there is no sum:

* before the last step the run stops, and makes the round again when the silos are back;
* in the last step silos have handed over shares, and take no part in a second sum of this exchange.
  Then the round counts as one in which nobody answered.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, Exchange, HasX
from fafed.engines.base import Counts, NobodyAnswered, NotFinite, Reply, RoundLost, Sent, Snapshot
from fafed.engines.encoded import ATTEMPTS, EncodedMean
from fafed.errors import FafedError
from fafed.experiments.config import Experiment
from fafed.files import Json
from fafed.objectives.base import Objective
from fafed.privacy.options import LEAST_SILOS, default_threshold, quorum
from fafed.privacy.refusal import Refused as NoSum
from fafed.privacy.secure_sum import messages as wire
from fafed.privacy.secure_sum.identity import Trust
from fafed.privacy.secure_sum.server import KINDS, Request, Server, Sum
from fafed.privacy.secure_sum.server import TooFew as TooFewForSum
from fafed.silos import messages
from fafed.silos.bounds import Bounds
from fafed.silos.messages import Content, ExchangeId, Message, Packed, Refused, Shapes
from fafed.silos.remote_engine import REPLIES, Silos
from fafed.silos.secure.silo import INTEGERS, as_tensor, packed_inbox
from fafed.silos.secure.task import encoded, public_examples, task, told_bounds
from fafed.silos.server import Mailbox, TooFew, log


@dataclass
class _Heard:
    """What silos have said instead of an answer."""

    beyond: dict[int, list[str]] = field(default_factory=dict)  # client -> leaves
    lost: list[int] = field(default_factory=list)
    diverged: list[NotFinite] = field(default_factory=list)
    over: list[int] = field(default_factory=list)  # have handed over shares for this exchange


class SecureSilos(Silos):
    """Silos under secure aggregation."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        objective: Objective,
        mailbox: Mailbox,
        *,
        experiment: Experiment,
        examples: Sequence[int],
        run: str,
        units: int | None,
        epoch_steps: int,
        bounds: Bounds | None = None,
        sends: Sequence[Sequence[str]] = (),
        trust: Trust | None = None,
    ) -> None:
        """examples: of each silo. trust: with it, a silo with a wrong certificate is left out;
        without, the other silos find it, and stop."""
        self.experiment = experiment
        self.examples = public_examples(experiment, examples)
        self.encoded = encoded(experiment, algorithm, len(examples), self.examples)
        self.trust = trust
        self.number = 0  # of the last attempt
        super().__init__(
            algorithm,
            objective,
            mailbox,
            run=run,
            weights=self.encoded.weights,
            steps=experiment.local_steps,
            units=units,
            epoch_steps=epoch_steps,
            bounds=bounds,
            sends=sends,
        )

    def least_silos(self) -> int:
        return max(super().least_silos(), quorum(self.population))

    def commit(self) -> None:
        self.encoded.commit()
        super().commit()

    def rollback(self) -> None:
        self.encoded.rollback()
        super().rollback()

    def snapshot(self) -> Snapshot:
        states, notes = super().snapshot()
        return Snapshot(states, notes | self.encoded.notes())

    def restore(self, snapshot: Snapshot) -> None:
        notes = dict(snapshot.notes)
        self.encoded.restore({"bounds": notes.pop("bounds", [])})
        super().restore(snapshot._replace(notes=notes))

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
        packed = messages.pack((down, buffers))
        for attempt in range(ATTEMPTS):
            place = ExchangeId(self.run, step // self.steps + 1, self.index, self.attempt)
            asked = self._asked(clients, place)
            mean = EncodedMean(self.encoded.encoder(step, opening), buffers)
            mean.start(self._like(exchange, down, buffers, place)[0])
            found = self._sum(mean, packed, asked, clients, place)
            if found is not None or attempt == ATTEMPTS - 1 or not self.encoded.too_large(mean):
                break
            self.attempt = secrets.token_hex(8)  # the silos keep what they came from
        counts = Counts(down=tree.nbytes((down, buffers)), up=mean.nbytes)
        value = self._read(mean, found, counts, asked)
        answered = [c for c in asked if c not in mean.absent]
        self.pending = {c: [place.round, place.exchange, place.attempt] for c in answered}
        self.index += 1
        weights = self.encoded.weights
        value = tree.map(lambda leaf: leaf.to(shared.x.device), value)
        reply = counts.reply(exchange, value, answered, weights, steps=self.steps, units=self.units)
        return reply._replace(answered=tuple(answered))

    def _read(
        self, mean: EncodedMean, found: Sum | None, counts: Counts, asked: Sequence[int]
    ) -> Sent:
        """The mean, from the sum. None: clients are beyond their bounds, and too few are left."""
        answered = [client for client in asked if client not in mean.absent]
        if found is None:
            self.encoded.grow(mean)
            raise NobodyAnswered(
                f"{len(answered)} of {len(asked)} silos have answered within the bounds of their "
                "messages"
            )
        bits = self.encoded.encoding.bits
        total = torch.from_numpy(found.total.view(f"<i{bits // 8}")).to(torch.int64)
        lengths = [len(part) for part in tree.leaves(mean.total)]
        mean.total = torch.split(total, lengths)  # type: ignore[assignment]
        try:
            mean.check_sum(answered)
            value = self.encoded.finish(mean, counts, asked)
            n = len(answered)
            if min(counts.evaluations, counts.samples) < n or not 0 <= counts.without_loss <= n:
                raise FafedError("the sum of the counts is impossible")
        except RoundLost:
            raise
        except FafedError as cause:
            raise RoundLost(
                f"{cause}: a silo has sent wrong numbers or wrong shares, and nobody can see which"
            ) from cause
        return value

    # One sum.

    def _sum(
        self,
        mean: EncodedMean,
        packed: Packed,
        asked: Sequence[int],
        clients: Sequence[int],
        place: ExchangeId,
    ) -> Sum | None:
        """The sum over the silos that stay. `mean` learns who is absent. None: clients are beyond
        their bounds, and the exchange can be made again."""
        self._enough_for_sum(len(asked), place)
        facts = self._common_facts(mean)
        names = [self.federation.silos[client] for client in asked]
        self.number = max(self.number + 1, time.time_ns() // 1000)  # larger after a restart, too
        server = Server(
            wire.Context(self.run, place.round, place.exchange, self.number),
            names,
            [len(total) for total in tree.leaves(mean.total)],
            bits=self.encoded.encoding.bits,
            trust=self.trust,
            task=task(self.experiment, self.population, packed.digest, facts),
        )
        heard = _Heard()
        requests: dict[str, Request] | Sum = server.begin()
        while not isinstance(requests, Sum):
            step = server.step
            self._ask(server, requests, packed, facts, place, heard)
            if step == "masked" and not self._goes_on(server, mean, heard, asked, clients, place):
                return None
            try:
                requests = server.go_on()
            except TooFewForSum as cause:
                if step == "unmask" or (step == "keys" and heard.over):
                    raise RoundLost(
                        f"{cause}; silos have handed over shares for this exchange, and it cannot "
                        "be made again"
                    ) from cause
                raise TooFew(
                    f"round {place.round}: {cause}: bring them back and go on; what is finished is "
                    "saved"
                ) from cause
            except (NoSum, FafedError) as cause:
                raise RoundLost(str(cause)) from cause
        return requests

    def _common_facts(self, mean: EncodedMean) -> dict[str, Json]:
        return {
            "epoch_steps": self.epoch_steps,
            "opening": self.opening,
            "bounds": told_bounds(mean.encoder),
            "examples": self.examples,
        }

    def _ask(
        self,
        server: Server,
        requests: Mapping[str, Request],
        packed: Packed,
        facts: Mapping[str, Json],
        place: ExchangeId,
        heard: _Heard,
    ) -> None:
        """Ask the silos for one step, and let the server of the sum take their answers."""
        step = server.step
        expected: Shapes = {"0": (None, torch.uint8)}
        if step == "masked":
            expected = {"0": ((sum(server.lengths),), INTEGERS[self.encoded.encoding.bits])}
            letters = {
                silo: self._masked_request(silo, request, packed, facts, place)
                for silo, request in requests.items()
            }
        else:  # all silos get the same
            packed = messages.pack((as_tensor(wire.write(next(iter(requests.values())))),))
            letters = dict.fromkeys(requests, messages.write(step, place, {}, packed))
        kinds = REPLIES | {step: expected, "over": {}, "beyond": {}}
        for silo, found in self.mailbox.ask(
            letters, place, kinds, packed.digest, self.federation.deadline
        ):
            if found is not None:
                self._take(server, silo, found, heard)
            del found  # a large one is in the sum now
        self._count_refused([self.federation.silos.index(silo) for silo in requests], place)

    def _masked_request(
        self,
        silo: str,
        request: Request,
        packed: Packed,
        facts: Mapping[str, Json],
        place: ExchangeId,
    ) -> Message:
        assert isinstance(request, wire.Inbox)
        client = self.federation.silos.index(silo)
        base = (self.pending if place.exchange else self.counted).get(client)
        own: dict[str, Json] = {"base": base, "inbox": packed_inbox(request)}
        return messages.write("masked", place, {**facts, **own}, packed)

    def _take(self, server: Server, silo: str, found: Content, heard: _Heard) -> None:
        client, step = self.federation.silos.index(silo), server.step
        if step == "masked" and found.kind in ("masked", "beyond"):
            try:
                self.hear(client, found.facts)
            except Refused as why:
                self._refuse(client, found.place, str(why))
                return
        if found.kind == step == "masked":
            numbers = found.tensors["0"].numpy().data
            server.take(silo, wire.Masked(silo, numbers.cast("B")))
        elif found.kind == step:
            try:
                answer = wire.read(KINDS[step], found.tensors["0"].numpy().tobytes())
                server.take(silo, answer)
            except NoSum as why:
                server.left_out[silo] = str(why)
        elif found.kind == "beyond":
            heard.beyond[client] = _leaves(found)
            log.warning("round %d: silo %r is beyond its bounds; left out", found.place.round, silo)
        elif found.kind == "over":
            heard.over.append(client)
            log.warning("round %d: silo %r has handed over shares", found.place.round, silo)
        elif found.kind == "lost" and self._may_have_lost(client, found.place):
            heard.lost.append(client)
        elif isinstance(one := self._taken(client, found, ((), ())), NotFinite):
            heard.diverged.append(one)
        if silo in server.left_out:
            self._refuse(client, found.place, server.left_out.pop(silo))

    def _goes_on(
        self,
        server: Server,
        mean: EncodedMean,
        heard: _Heard,
        asked: Sequence[int],
        clients: Sequence[int],
        place: ExchangeId,
    ) -> bool:
        """After the masked messages: whether their masks are to be removed. Until now the exchange
        can be made again. False: clients are beyond their bounds, and too few are left."""
        answered = [c for c in asked if self.federation.silos[c] in server.answered]
        mean.absent = set(asked) - set(answered)
        known = set(mean.exponents)
        mean.beyond = {leaf for own in heard.beyond.values() for leaf in own if leaf in known}
        complete = len(answered) == len(clients)
        everyone = self.algorithm.requires_all_clients
        if heard.lost and not place.exchange:
            self._forget(heard.lost, place)
        if heard.diverged and (everyone or len(answered) < self.federation.min_silos):
            raise heard.diverged[0]
        if mean.beyond and (everyone or len(answered) < quorum(len(asked))):
            return False
        if place.exchange and not complete:
            self.encoded.grow(mean)
            raise RoundLost(
                f"{len(answered)} of {len(clients)} silos have answered in a later exchange of the "
                "round, and the sums of the earlier ones cannot be made again"
            )
        if everyone and not complete:
            raise TooFew(
                f"round {place.round}: {type(self.algorithm).__name__} needs every silo in every "
                f"round, and {len(answered)} of {len(clients)} have answered: bring them back and "
                "go on; what is finished is saved"
            )
        self._enough_for_sum(len(answered), place)
        return True

    def _enough_for_sum(self, n: int, place: ExchangeId) -> None:
        self._enough(n, f"round {place.round}")
        if n < LEAST_SILOS:
            raise TooFew(
                f"round {place.round}: {n} of {self.population} silos, and a secure sum needs "
                f"{LEAST_SILOS}: bring them back and go on; what is finished is saved"
            )


def _leaves(found: Content) -> list[str]:
    leaves = found.facts.get("leaves")
    return [leaf for leaf in leaves if isinstance(leaf, str)] if isinstance(leaves, list) else []


def told(silos: int) -> str:
    """What a user sees of it."""
    return f"secure aggregation: on, {silos} silos, threshold {default_threshold(silos)}"
