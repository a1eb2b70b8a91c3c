"""The silo's side: it receives a request, runs the client, and sends the answer.

The silo writes its state to disk before it answers, so any process may take the next request. The
audit file lists every answer. The text of an error stays in the silo's log, because it may name
paths. The server learns only the kind of the error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fafed import __version__, files
from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, Exchange, HasX, exchanges_of_round
from fafed.core.tree import Tree
from fafed.data.normalise import inputs_of
from fafed.engines.base import ClientState, NotFinite
from fafed.engines.client import Oracle, Visit, check, visit
from fafed.errors import DataError, FafedError
from fafed.experiments.config import Experiment
from fafed.files import Json
from fafed.objectives.base import Memory
from fafed.objectives.module import Model
from fafed.privacy.refusal import Over
from fafed.privacy.refusal import Refused as NoSum
from fafed.silos import column_sums, compressed, final_model, messages, payload
from fafed.silos.audit import Audit, logged
from fafed.silos.limits import Budget, Refusal
from fafed.silos.messages import EMPTY, Content, ExchangeId, Facts, Message, Packed, Refused
from fafed.silos.part import Part, RunPlan, load, plan_of
from fafed.silos.private import Ledger
from fafed.silos.site import Kit, Site
from fafed.silos.state_store import Lost, Store

if TYPE_CHECKING:
    from fafed.silos.secure.silo import SecureSums

log = logging.getLogger("fafed")
Handler: TypeAlias = "Callable[[Message, ExchangeId, Facts], tuple[str, Facts, Packed]]"
SMALL_STEPS = ("keys", "shares", "agree", "unmask")  # of a secure sum


class Worked(NamedTuple):
    """What came of an exchange on this silo."""

    visit: Visit
    buffers: tuple[Tensor, ...]  # that the server has sent
    keep: Callable[[], None]  # writes the client's new state to disk
    packed: dict[str, Tensor] | None = None  # the compressed message, with the buffers


class Worker:
    """One silo. Requests are handled one at a time."""

    def __init__(
        self, name: str, site: Site, kit: Kit | None = None, carried: bytes | None = None
    ) -> None:
        """kit: what the transport gives a silo to sign with. carried: the secure sum that the
        process before had under way, where every message has a process of its own; else None."""
        self.name = name
        self.site = site
        self.kit = kit
        self.carried = carried
        self.audit = Audit(site.folder / "audit.jsonl", name)
        self.lock = threading.Lock()
        self.budget = Budget(site.folder)
        self.ledger = Ledger(site.folder)
        self.parts: dict[str, Part] = {}  # run -> the silo's part in it

    @functools.cached_property
    def sums(self) -> SecureSums:
        """The silo's part in secure sums. It needs packages that open runs do not need."""
        from fafed.silos.secure.silo import SecureSums

        return SecureSums(self.name, self.site, self.kit, self.carried)

    def held(self) -> bytes:
        """The secure sum under way, for the next process. It must stay in memory."""
        return self.sums.held() if "sums" in self.__dict__ else self.carried or b""

    def handle(self, request: Message) -> Message:
        """The answer to a request. A wrong request gets an answer, too."""
        with self.lock, logged(self.site.folder / "log.txt"):
            return self._handle(request)

    def refuse(self, request: Message, why: str) -> Message:
        """The answer of a silo that does not take part, to any request."""
        with self.lock, logged(self.site.folder / "log.txt"):
            log.error("%s: this silo does not take part: %s", self.name, why)
            place = _place(request.head)
            answer = messages.write("refused", place, {"why": why}, EMPTY)
            self.audit.note("sent", "server", "refused", place, answer.size, EMPTY.digest, why=why)
            return answer

    def brief(self, hello: Message) -> None:
        """Learn about a run from a hello that came with another message, if this silo does not know
        the run: its disk may be new. The hello is not answered. An error appears in the answer to
        the other message."""
        with self.lock, logged(self.site.folder / "log.txt"), contextlib.suppress(FafedError):
            head = messages.glance(hello.head)
            place = ExchangeId.from_head(head)
            try:
                self._known(place.run)
            except Refused:
                self.audit.note("received", "server", "hello", place, hello.size, head["sha256"])
                self._hello(hello, place, head["facts"])

    def _handle(self, request: Message) -> Message:
        place, kind, size = ExchangeId(""), "refused", request.size
        facts: Facts = {}
        packed = EMPTY
        try:
            if size > self.site.limit:
                raise Refused(f"it has {size} bytes, this silo takes {self.site.limit}")
            head = messages.glance(request.head)
            place = ExchangeId.from_head(head)
            asked, digest = head["kind"], head["sha256"]
            self.audit.note("received", "server", asked, place, size, digest)
            kinds: dict[str, Handler] = {
                "hello": self._hello,
                "visit": self._visit,
                "measure": self._measure,
                column_sums.KIND: self._sums,
                final_model.KIND: self._final,
                "masked": self._masked,
                **{step: functools.partial(self._step, step) for step in SMALL_STEPS},
            }
            if asked not in kinds:
                raise Refused(f"it is a {asked!r}, expected {', '.join(kinds)}")
            request = request._replace(body=payload.shelved(request.body, self.site.folder))
            kind, facts, packed = kinds[asked](request, place, head["facts"])
        except (Refused, Refusal, NoSum) as cause:
            why = messages.clean(cause, 500)
            log.warning("%s: refused the server's message: %s", self.name, why)
            kind, facts = ("over" if isinstance(cause, Over) else kind), {"why": why}
        except Lost as cause:
            log.warning("%s: %s; this silo joins as a new one", self.name, cause)
            kind = "lost"
        except NotFinite as cause:
            kind, facts = "diverged", {"what": cause.what}
        except Exception as cause:  # the text may name paths, so it stays here
            log.exception("%s: round %d failed", self.name, place.round)
            kind, facts = "failed", {"error": type(cause).__name__, **self._fault(cause)}
        answer = messages.write(kind, place, facts, packed)
        told = {"numbers": json.dumps(facts)} if kind == "measured" else {}
        self.audit.note("sent", "server", kind, place, answer.size, packed.digest, **told)
        return answer

    def _fault(self, cause: Exception) -> Facts:
        """The kind of fault in this silo's data, if its file allows the server to know it."""
        told = self.site.tell_faults and isinstance(cause, DataError) and cause.fault
        return {"fault": cause.fault} if told and isinstance(cause, DataError) else {}

    def _hello(
        self, request: Message, place: ExchangeId, facts: Facts
    ) -> tuple[str, Facts, Packed]:
        messages.read(request, place, {"hello": {}}, self.site.limit)
        plan = plan_of(facts)
        self._check_normalisation(place.run, plan)
        part = self.loaded(place.run, plan)
        if part.private is not None:
            part.private.check_plan()
        written = plan._asdict()
        if plan.normalisation is not None:
            written["normalisation"] = plan.normalisation.to_dict()
        content = [json.dumps(written).encode()]
        files.write(self._folder(place.run) / "plan.json", content, private=True)
        share = self.site.data.share
        wanted = part.experiment.data.normalise is not None
        inputs = {"inputs": inputs_of(part.source).shape[1]} if wanted else {}
        return (
            "welcome",
            {
                "examples": part.source.examples[plan.client],
                "units": part.source.units,
                "epoch_steps": part.source.epoch_steps if share else None,
                "sends": list(part.sends),
                "fafed": __version__,
                **inputs,
                **part.spent,
            },
            EMPTY,
        )

    def _check_normalisation(self, run: str, plan: RunPlan) -> None:
        """Inputs are normalised by the same numbers as long as a run lasts."""
        if not (self.site.folder / "runs" / run / "plan.json").is_file():
            return
        before = self._known(run).normalisation
        if before not in (None, plan.normalisation):
            raise Refused("it changes the normalisation that the run has begun with")

    def _sums(self, request: Message, place: ExchangeId, facts: Facts) -> tuple[str, Facts, Packed]:
        """The sums of this silo's columns, in an open run."""
        part = self._part(place.run)
        if part.experiment.privacy_options().secure:
            raise Refused("this run has secure aggregation: the silo's sums do not leave open")
        return column_sums.KIND, {}, messages.pack((self._own_sums(request, place, part, "sums"),))

    def _own_sums(self, request: Message, place: ExchangeId, part: Part, kind: str) -> Tensor:
        experiment, client = part.experiment, part.plan.client
        if experiment.data.normalise is None or part.plan.normalisation is not None:
            raise Refused("this run asks for no sums of columns, or has them already")
        if not self.site.data.share:
            self.site.limits.check_column_sums(experiment)
        inputs = inputs_of(part.source).shape[1]
        centre = column_sums.asked_for(request, place, kind, inputs, self.site.limit)
        if not self.site.data.share:
            self.budget.spend(place.run, 1.0, self.site.limits)
        return column_sums.own_sums(place, *self.site.rows(experiment, client), centre)

    def _measure(
        self, request: Message, place: ExchangeId, facts: Facts
    ) -> tuple[str, Facts, Packed]:
        """Evaluate the server's model on this silo's own rows. Only the numbers that the silo's
        file names leave it. Each evaluation counts as one look at the rows."""
        part = self._part(place.run)
        if part.evaluator is None:
            raise Refusal(
                "this silo sends no evaluation: its file has no number for it in [evaluate] send, "
                "or too few rows are held out; ask who runs the silo"
            )
        like = (part.goal.x0, part.goal.start().buffers)
        found = messages.read(request, place, {"measure": messages.shapes(like)}, self.site.limit)
        if not self.site.data.share:
            if not (self._folder(place.run) / "begun").exists():
                raise Refused("this silo has not seen the beginning of the run")
            self.budget.spend(place.run, 1.0, self.site.limits)
        device = part.goal.x0.device
        tensors = {name: leaf.to(device) for name, leaf in found.tensors.items()}
        measured = part.evaluator(*tree.unflatten(like, tensors))["test"]
        numbers = {name: measured[name] for name in part.sends}
        told: dict[str, Json] = {
            name: value if math.isfinite(value) else None for name, value in numbers.items()
        }
        return "measured", {"examples": part.test_rows, "numbers": told}, EMPTY

    def _visit(
        self, request: Message, place: ExchangeId, facts: Facts
    ) -> tuple[str, Facts, Packed]:
        part = self._part(place.run)
        if part.experiment.privacy_options().secure:
            raise Refused("this run has secure aggregation: the silo's answer does not leave open")
        done = self._worked(request, place, facts, part)
        done.keep()
        told = {
            "loss": float(done.visit.loss) if done.visit.has_loss else None,
            "evaluations": done.visit.evaluations,
            "samples": done.visit.samples,
            **part.spent,
        }
        return (
            "answer",
            told,
            messages.pack(done.packed or (done.visit.message, done.visit.buffers)),
        )

    def _step(
        self, step: str, request: Message, place: ExchangeId, facts: Facts
    ) -> tuple[str, Facts, Packed]:
        """A step of a secure sum, except for the one with the silo's own numbers."""
        self._secure_part(place.run)
        bytes_only: messages.Shapes = {"0": (None, torch.uint8)}
        found = messages.read(request, place, {step: bytes_only}, self.site.limit)
        answer = self.sums.answer(step, place, found.tensors["0"].numpy().tobytes())
        return step, {}, messages.pack((answer,))

    def _masked(
        self, request: Message, place: ExchangeId, facts: Facts
    ) -> tuple[str, Facts, Packed]:
        """The step of a secure sum in which the silo computes. Its answer leaves under masks."""
        from fafed.silos.secure.silo import BeyondBounds
        from fafed.silos.secure.task import silo_encoder, task

        part = self._secure_part(place.run)
        client, clients = part.plan.client, part.plan.clients
        body = messages.glance(request.head)["sha256"]  # it is checked when the numbers are read
        self.sums.check_task(place, task(part.experiment, clients, body, facts))
        if place.round == 0:
            limbs = self._own_sums(request, place, part, "masked")
            bits = part.experiment.privacy_options().bits
            return "masked", {}, messages.pack((column_sums.masked(self.sums, limbs, bits, facts),))
        encoder = silo_encoder(
            part.experiment,
            part.algorithm(facts),
            place,
            facts,
            client=client,
            clients=clients,
            own=part.source.examples[client],
        )
        done = self._worked(request, place, facts, part)
        try:
            vector = self.sums.masked(client, done.visit, done.buffers, encoder, facts)
        except BeyondBounds as cause:
            log.warning("%s: absent from round %d: %s", self.name, place.round, cause)
            return "beyond", {"leaves": cause.leaves, **part.spent}, EMPTY
        done.keep()
        return "masked", dict(part.spent), messages.pack((vector,))

    def _secure_part(self, run: str) -> Part:
        part = self._part(run)
        if not part.experiment.privacy_options().secure:
            raise Refused("this run has no secure aggregation")
        return part

    def _worked(self, request: Message, place: ExchangeId, facts: Facts, part: Part) -> Worked:
        """Run the client on what the server has sent."""
        if (part.experiment.data.normalise is None) != (part.plan.normalisation is None):
            raise Refused("this silo has not been told how inputs are normalised")
        algorithm = part.algorithm(facts)
        exchange = _exchange(algorithm, part.experiment, place, facts.get("opening"))
        like = (_sent(algorithm, exchange, part.goal.x0), part.goal.start().buffers)
        expected = {n: (None, dtype) for n, (_, dtype) in messages.shapes(like).items()}
        kinds: dict[str, messages.Shapes] = {"visit": {**expected}, "masked": {**expected}}
        found = messages.read(request, place, kinds, self.site.limit)
        device = part.goal.x0.device
        tensors = {name: leaf.to(device) for name, leaf in found.tensors.items()}
        down, buffers = tree.unflatten(like, tensors)
        if not self.site.data.share:
            begins = place.exchange == 0 and (facts["opening"] is True or place.round == 1)
            self._check_start(place, part, algorithm, (down, buffers), begins=begins)
        base, store = _base(found), Store(self._folder(place.run))
        wiring = part.wiring(facts)
        owed = wiring.nothing_owed(part.goal.x0) if wiring is not None else ()
        state, keeps = _state(algorithm, part.goal, down, base, store, owed)
        state = tree.map(lambda leaf: leaf.to(device), state)
        steps, client = part.experiment.local_steps, part.plan.client
        step = (place.round - 1) * steps
        private = None if part.private is None else part.private.visit(place.exchange)
        source = part.source if private is None else private.source
        objective = part.goal if private is None else private.gradients
        draws = source.draw(exchange.draw, client, step, steps)
        if not self.site.data.share:
            own = (one.rows.numel() for one in draws if one)
            looks = sum(own) if private is None else private.looks(draws)
            self.budget.spend(place.run, looks / source.examples[client], self.site.limits)
        oracle = Oracle(objective, Memory(buffers, state.hidden))
        try:
            done = visit(oracle, exchange, down, state.local, source.batches(draws))
        finally:  # an error leaves the silo, too
            if private is not None:
                private.spend(draws)
        check(client, done.loss, done.message)
        packed = None
        if wiring is not None:
            channel = compressed.channel(wiring, down, place, step, facts)
            sent = done.message, done.buffers
            packed, left = compressed.packed(channel, sent, state.owed, client)
            done = done._replace(state=done.state._replace(owed=left))

        def keep() -> None:
            if keeps:
                store.save(place, done.state, base)

        return Worked(done, buffers, keep, packed)

    def _final(
        self, request: Message, place: ExchangeId, facts: Facts
    ) -> tuple[str, Facts, Packed]:
        if not self.site.model.keep:
            raise Refusal("this silo does not want the model: its file has keep = false")
        part, folder = self._part(place.run), self._folder(place.run)
        final_model.keep(
            request,
            place,
            part.experiment,
            part.goal,
            folder,
            self.site.limit,
            part.plan.normalisation,
        )
        return final_model.ANSWER, {}, EMPTY

    def _check_start(
        self, place: ExchangeId, part: Part, algorithm: AnyAlgorithm, found: object, *, begins: bool
    ) -> None:
        """Check the initial weights of a run. If the silo joins later, this is not possible."""
        mark, limits = self._folder(place.run) / "begun", self.site.limits
        if begins:
            start = part.goal.start().buffers
            limits.check_start(part.experiment, algorithm, part.goal.x0, found, start)
        elif not mark.exists():
            if not limits.join_late:
                raise Refusal(
                    f"this silo has not seen the beginning of the run, and is to join it in round "
                    f"{place.round}: its file has join_late = false; start a new run, or ask "
                    "who runs the silo"
                )
            log.warning(
                "%s: joins the run %s in round %d: what it began with was not checked",
                self.name,
                place.run,
                place.round,
            )
        if not mark.exists():
            files.write(mark, [], private=True)

    # What a run needs, loaded once per process.

    def loaded(self, run: str, plan: RunPlan) -> Part:
        if run not in self.parts or self.parts[run].plan != plan:
            experiment = Experiment.from_dict(plan.experiment, "the server's experiment")
            self.site.check(experiment, plan.clients)
            if experiment.privacy_options().secure:
                _ = self.sums  # a silo that cannot take part says so now
            self.parts = {run: load(run, plan, experiment, self.site, self.ledger)}
        return self.parts[run]

    def _part(self, run: str) -> Part:
        return self.parts[run] if run in self.parts else self.loaded(run, self._known(run))

    def _known(self, run: str) -> RunPlan:
        try:
            return plan_of(json.loads((self._folder(run) / "plan.json").read_text("utf-8")))
        except (OSError, ValueError) as cause:
            raise Refused("this silo does not know the run: it must be told hello first") from cause

    def _folder(self, run: str) -> Path:
        folder = self.site.folder / "runs" / run
        try:
            files.make_folder(folder, private=True)
        except OSError as cause:
            raise FafedError(f"{folder} cannot be made: {cause}") from cause
        return folder


def unable(head: bytes, cause: Exception) -> Message:
    """The answer of a silo that cannot start, for example because its own file is wrong."""
    return messages.write("failed", _place(head), {"error": type(cause).__name__}, EMPTY)


def _place(head: bytes) -> ExchangeId:
    with contextlib.suppress(Refused):
        return ExchangeId.from_head(messages.glance(head))
    return ExchangeId("")


def _exchange(
    algorithm: AnyAlgorithm, experiment: Experiment, place: ExchangeId, opening: object
) -> Exchange:
    if not isinstance(opening, bool):
        raise Refused(f"opening is {str(opening)[:80]!r}, it must be true or false")
    exchanges = exchanges_of_round(algorithm, opening=opening)
    if not (1 <= place.round <= experiment.rounds and 0 <= place.exchange < len(exchanges)):
        raise Refused(f"there is no exchange {place.exchange} of round {place.round}")
    return exchanges[place.exchange]


def _sent(algorithm: AnyAlgorithm, exchange: Exchange, x0: Tensor) -> HasX:
    """The shapes of what the server sends."""
    try:  # without numbers it costs nothing
        return exchange.send(algorithm.init(x0.to("meta")))
    except (RuntimeError, NotImplementedError):  # the algorithm needs numbers
        return tree.map(lambda leaf: leaf.to("meta"), exchange.send(algorithm.init(x0)))


def _state(
    algorithm: AnyAlgorithm,
    goal: Model,
    down: HasX,
    base: ExchangeId | None,
    store: Store,
    owed: Tree,
) -> tuple[ClientState, bool]:
    """The state that the client continues from, and whether the client keeps a state at all."""
    new = ClientState(algorithm.join(down.x), goal.hidden_like(), owed)
    keeps = bool(tree.leaves(new))
    if base is None or not keeps:
        return new._replace(hidden=()), keeps
    return store.load(base, new), keeps


def _base(found: Content) -> ExchangeId | None:
    base = found.facts.get("base")
    if base is None:
        return None
    if isinstance(base, list) and len(base) == 3:
        round, exchange, attempt = base
        named = isinstance(attempt, str) and attempt.isalnum() and len(attempt) <= 64
        if named and type(round) is int and type(exchange) is int:
            return ExchangeId(found.place.run, round, exchange, attempt)
    raise Refused("its base is not a round, an exchange and an attempt")
