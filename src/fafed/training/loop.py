"""The round loop: a generator of records.

    for record in Run(algorithm, engine, rounds=100):
        ...                                        # look, log, stop: it is your loop

Between two rounds, `state` and the clients' states in the engine are all that a `Run` remembers. A
round either happens as a whole or not at all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, HasX, exchanges_of_round
from fafed.core.arguments import checked
from fafed.core.records import History, Record
from fafed.engines.base import Engine, NobodyAnswered, NotFinite, RoundLost, StateLost
from fafed.errors import ConfigError, FafedError
from fafed.training.budget import Budget
from fafed.training.cohort import Cohort, check_everyone

log = logging.getLogger("fafed")


class Measure(Protocol):
    """Evaluates a model, its vector and its buffers, after so many local steps. Returns part ->
    name -> number; the parts are fields of a `Record`."""

    def __call__(
        self, x: Tensor, buffers: tuple[Tensor, ...], step: int, /
    ) -> Mapping[str, Mapping[str, Any]]: ...


TOO_LARGE = 1e8  # a loss above this multiple of (1 + |first round's loss|) is a divergence
FirstLoss = Callable[[Sequence[int]], float]  # the mean loss of clients before their first step


class State(NamedTuple):
    """The server's side of a run between two rounds."""

    shared: HasX
    buffers: tuple[Tensor, ...]
    round: int  # rounds finished
    members: tuple[int, ...]  # the last cohort, if all invited clients answered; else ()
    totals: Totals


class Totals(NamedTuple):
    gradients: float = 0.0
    samples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0


class Diverged(FafedError):
    """The run produced NaN, infinity or a far too large loss. `history` and `x` are those of the
    last good round."""

    def __init__(self, message: str, client: int | None, round: int) -> None:
        super().__init__(message)
        self.client = client
        self.round = round
        self.x: Tensor | None = None
        self.history: History = History()


class Absent(FafedError):
    """A round needs clients that are absent."""


class _RetryRound(Exception):
    """The round must be repeated with these clients."""

    def __init__(self, clients: tuple[int, ...]) -> None:
        self.clients = clients


class Run:
    """One algorithm on one engine, round after round."""

    first_loss: float | None = None  # of the first round that has one
    budget: Budget | None = None  # of privacy

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        engine: Engine,
        x0: Tensor,
        buffers: tuple[Tensor, ...] = (),
        *,
        rounds: int,
        local_steps: int,
        cohort: Cohort | None = None,
        measure: Measure | None = None,
        measure_every: int = 1,
        check_state: bool = False,
        budget: Budget | None = None,
        loss_before: FirstLoss | None = None,
    ) -> None:
        """budget: with it, records have the epsilon that is spent, and the run stops in time.
        check_state: look for NaN and infinity in the server's state, too, before a round counts.
        If clients are trusted this is not needed: the next round finds NaN in their messages.
        loss_before: the loss that a far too large one of the first round is compared with."""
        self.algorithm = algorithm
        self.engine = engine
        self.rounds = checked("rounds", rounds)
        self.local_steps = checked("local_steps", local_steps)
        self.cohort = cohort or Cohort(engine.population)
        self.measure = measure
        self.measure_every = checked("eval_every", measure_every)
        self.check_state = check_state
        self.budget = budget
        self.loss_before = loss_before
        self.state = State(algorithm.init(x0), buffers, 0, (), Totals())
        self.regrouped = False  # whether an estimate has started again
        self.underway = False  # whether a round is running that an exception would undo
        if algorithm.population not in (None, engine.population):
            raise ConfigError(
                f"{algorithm} runs with {algorithm.population} client, got {engine.population}: "
                "put all data into one client, or use a federated algorithm"
            )
        check_everyone(algorithm, self.cohort.participation, self.cohort.failure)

    def __iter__(self) -> Iterator[Record]:
        if self.budget is not None and self.state.round > self.last_round:
            raise ConfigError(
                f"privacy.max_epsilon = {self.budget.max_epsilon:g} is already passed: the "
                f"{self.state.round} rounds so far have spent "
                f"{self.budget.accountant.epsilon(self.state.round):.3g}; nothing more can be run"
            )
        try:
            while not self.ended:
                yield self.round()
        finally:
            self.engine.close()
        if self.budget is not None and self.state.round < self.rounds:
            log.warning(
                "stopped after round %d of %d: one more would pass max_epsilon = %g",
                self.state.round,
                self.rounds,
                self.budget.max_epsilon,
            )

    @cached_property
    def last_round(self) -> int:
        """The last round that is made. A privacy budget may end before the run does."""
        return self.rounds if self.budget is None else self.budget.affordable(self.rounds)

    @property
    def ended(self) -> bool:
        """Whether no round is left, or a client's privacy budget is spent."""
        return self._ends_with(self.state.round)

    def _ends_with(self, round: int) -> bool:
        most = None if self.budget is None else self.budget.max_epsilon
        spent = most is not None and self.engine.next_epsilon > most
        return round >= self.last_round or spent

    def round(self) -> Record:
        """Make one round. On an error the state remains that of the round before."""
        began = time.perf_counter()
        number = self.state.round + 1
        invited = self.cohort.invited(number)
        clients = self.cohort.answering(number, invited)
        for _ in range(2 * len(invited) + 1):  # a client lost twice is left out, so this ends
            self.underway = self.engine.undoes
            try:
                return self._attempt(began, invited, clients)
            except _RetryRound as again:
                # with noise, a second try on the same batches would have to be paid for
                clients = again.clients if self.budget is None else ()
            finally:
                self.underway = False
        raise Absent(
            f"round {number}: clients are lost again and again between two exchanges: stopped"
        )

    def _attempt(self, began: float, invited: tuple[int, ...], clients: tuple[int, ...]) -> Record:
        number = self.state.round + 1
        step = self.state.round * self.local_steps
        shared, buffers, totals = self.state.shared, self.state.buffers, self.state.totals
        opening = totals.samples == 0  # no client has answered yet
        exchanges = exchanges_of_round(self.algorithm, opening=opening) if clients else ()
        if clients and not opening and invited != self.state.members:
            shared = self._regrouped(shared, number)
        loss, first = None, True
        for exchange in exchanges:
            try:
                reply = self.engine.deliver(exchange, shared, buffers, clients, step, opening)
                if reply.answered not in (None, clients):
                    clients = self._without_absent(reply.answered, clients, number, first)
                shared, first = exchange.server(shared, reply.mean, reply.info), False
                if self.check_state and not tree.finite(shared):
                    raise self._spoilt(number)
            except BaseException as cause:
                self.engine.rollback()
                if isinstance(cause, NotFinite):
                    raise self._diverged(cause, number) from cause
                if isinstance(cause, NobodyAnswered):
                    raise self._unanswered(cause, number) from cause
                if isinstance(cause, StateLost):
                    raise self._rejoined(cause, clients, number) from cause
                raise
            buffers = reply.buffers
            loss = reply.loss if reply.loss is not None else loss
            totals = Totals(
                totals.gradients + reply.gradients,
                totals.samples + reply.samples,
                totals.bytes_up + reply.bytes_up,
                totals.bytes_down + reply.bytes_down * len(invited) // len(clients),
                totals.seconds,
            )
        if (error := self._grown(loss, clients, number)) is not None:
            self.engine.rollback()
            if self.engine.ranks is not None:
                self.engine.ranks.agreed = error  # every rank knows this loss and stops here
            raise error
        totals = totals._replace(seconds=totals.seconds + time.perf_counter() - began)
        # with random cohorts nothing may depend on whether two are equal by chance
        known = invited == clients and (not self.cohort.poisson or self.cohort.always_all_clients)
        members = invited if known else ()
        state = State(shared, buffers, number, members, totals)
        try:
            record = self._record(state, loss, len(clients))
        except BaseException:
            self.engine.rollback()
            raise
        self.underway = False
        self.engine.commit()
        self.state = state
        if self.first_loss is None:
            self.first_loss = loss
        return record

    def _without_absent(
        self, answered: Sequence[int], clients: tuple[int, ...], number: int, first: bool
    ) -> tuple[int, ...]:
        """The clients that continue the round. If a client fails partway through a round, its
        results are discarded and the round is repeated without it."""
        absent = sorted(set(clients) - set(answered))
        if self.algorithm.requires_all_clients:
            raise Absent(
                f"round {number}: {type(self.algorithm).__name__} needs every client in every "
                f"round, but {absent} did not answer: bring them back and go on"
                + self._absence_advice()
            )
        if not first:
            raise _RetryRound(tuple(answered))
        return tuple(answered)

    def _rejoined(self, cause: StateLost, clients: tuple[int, ...], number: int) -> Exception:
        if self.algorithm.requires_all_clients:
            return Absent(
                f"round {number}: {cause}, and {type(self.algorithm).__name__} cannot do without "
                "it: restore it from a backup, or start the run from the beginning"
                + self._absence_advice()
            )
        self.state = self.state._replace(members=())
        return _RetryRound(clients)

    def _unanswered(self, cause: NobodyAnswered, number: int) -> Exception:
        if self.algorithm.requires_all_clients and not isinstance(cause, RoundLost):
            return Absent(
                f"round {number}: {cause}, and {type(self.algorithm).__name__} needs every client "
                "in every round" + self._absence_advice()
            )
        log.warning("round %d: %s. The model stays as it is", number, cause)
        return _RetryRound(())

    def _absence_advice(self) -> str:
        cure = self.algorithm.absence_cure
        return f" ({cure} does without)" if cure else ""

    def _regrouped(self, shared: HasX, number: int) -> HasX:
        new: HasX = self.algorithm.regroup(shared)
        if new is not shared:
            drawn = not self.cohort.always_all_clients  # then they change in nearly every round
            log.log(
                logging.INFO if drawn and self.regrouped else logging.WARNING,
                "round %d: the clients changed, %s starts its estimate again from zero "
                "(its analysis assumes the same clients in every round)%s",
                number,
                type(self.algorithm).__name__,
                "; so it does whenever they change, which is not said again" if drawn else "",
            )
            self.regrouped = True
        return new

    def _record(self, state: State, loss: float | None, clients: int) -> Record:
        shared, buffers, number, _, totals = state
        last = self._ends_with(number)
        wanted = self.measure and (last or number % self.measure_every == 0)
        step = number * self.local_steps
        measured = self.measure(shared.x, buffers, step) if self.measure and wanted else {}
        seen: dict[str, Any] = dict(self.algorithm.diagnostics(shared))
        if self.budget is not None:
            planned = self.budget.accountant.epsilon(number)
            seen["epsilon"] = max(planned, self.engine.epsilon)
        return Record(
            round=number,
            steps=step,
            **totals._asdict(),
            clients=clients,
            train_loss=loss,
            train=dict(measured.get("train", {})),
            test=dict(measured.get("test", {})),
            validation=dict(measured.get("validation", {})),
            clients_test=dict(measured.get("clients_test", {})),
            personalised=dict(measured.get("personalised", {})),
            client_values=dict(measured.get("client_values", {})),
            diagnostics={name: float(value) for name, value in seen.items()},
        )

    def _grown(self, loss: float | None, clients: Sequence[int], number: int) -> Diverged | None:
        """The error if the loss has grown beyond what a run recovers from. A loss may be negative.
        The loss of the first round contains its steps, so it is compared with the loss before."""
        if loss is None:
            return None
        before, when = self.first_loss, "in the first round"
        if before is None and loss > TOO_LARGE and self.loss_before is not None:
            before, when = self.loss_before(clients), "before the first step"
        if before is None or not loss > TOO_LARGE * (1 + abs(before)):
            return None
        return self._stopped(
            f"round {number}: the clients' mean loss is {loss:.3g}, and was {before:.3g} {when}. "
            f"{self.algorithm} has diverged: try a smaller eta, or clip=1.0. ",
            None,
            number,
        )

    def _diverged(self, cause: NotFinite, number: int) -> Diverged:
        return self._stopped(
            f"round {number}: {cause}. {self.algorithm} has most likely diverged: try a smaller "
            "eta, or clip=1.0; if it happens in round 1, look for NaN in that client's data. ",
            cause.client,
            number,
        )

    def _spoilt(self, number: int) -> Diverged:
        return self._stopped(
            f"round {number}: every message was finite, but the server's new state is not. "
            f"{self.algorithm} has most likely diverged: try a smaller eta. ",
            None,
            number,
        )

    def _stopped(self, why: str, client: int | None, number: int) -> Diverged:
        error = Diverged(
            f"{why}The state after round {number - 1} is kept.",
            client,
            number,
        )
        error.x = self.state.shared.x
        return error
