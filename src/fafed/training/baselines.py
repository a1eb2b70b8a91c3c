"""Two baselines: what each client reaches alone, and what one client with all data reaches.

"local": every client trains alone, from the same first model, with the algorithm for one client. It
makes `local_steps` steps in every round, whatever the participation is. Nothing is sent. Each model
is evaluated on the common data and on its client's own test data. A record holds means over the
clients. The model at the end is the mean of the clients' models, which nobody has trained.

"pooled": one client has the data of all clients. In every round it makes as many steps as the
clients of the first round together: local_steps times their number, each on `batch_size` examples.
So it computes as many gradients as the federation. The batch of the first estimate is larger by the
same factor. With batch_size = "full" it makes `local_steps` steps, on all data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from fafed.core.algorithm import HasX
from fafed.core.records import Record
from fafed.data.sources.base import Source
from fafed.data.sources.examples import Shuffled
from fafed.engines.base import Engine, Snapshot
from fafed.engines.worker_pool import WorkerPool
from fafed.errors import ConfigError
from fafed.objectives.base import Objective
from fafed.training.evaluation import Evaluator
from fafed.training.loop import Diverged, Run, State, Totals

BASELINES = ("local", "pooled")


def check_baseline(baseline: str | None, source: Source) -> None:
    if baseline is None:
        return
    if baseline not in BASELINES:
        raise ConfigError(f"baseline must be 'local', 'pooled' or None, got {baseline!r}")
    if not isinstance(source, Shuffled):
        raise ConfigError(f"baseline={baseline!r} needs single examples, not a text: leave it out")


def pooled(source: Shuffled, local_steps: int, clients: int) -> tuple[Shuffled, int]:
    """All data in one client, and its steps in a round, where `clients` take part at a time."""
    everything = [np.concatenate(source.parts)]
    if source.batch_size == "full":
        return source.with_parts(everything), local_steps
    anchor = source.anchor_size
    larger = anchor if isinstance(anchor, str) else anchor * clients
    return source.with_parts(everything, anchor_size=larger), local_steps * clients


class Models(NamedTuple):
    """The clients' models, in place of the server's state."""

    x: Tensor  # their mean
    each: tuple[tuple[HasX, tuple[Tensor, ...]], ...]  # the state and the buffers of each
    totals: Tensor  # (clients, counts)


class Alone(Run):
    """Clients that train alone: one run for each of them, round after round."""

    def __init__(
        self,
        source: Shuffled,
        run_of: Callable[[Shuffled], Run],
        *,
        measure: Evaluator | None,
        measure_every: int,
        workers: int | None,
        threads: int,
    ) -> None:
        """run_of: makes the run of one client, without evaluation."""
        if measure is not None and measure.personal is not None:
            raise ConfigError("baseline='local' has no server's model: leave out personalise")
        self.runs = [run_of(source.with_parts([rows])) for rows in source.parts]
        first = self.runs[0]
        self.algorithm, self.rounds, self.cohort = first.algorithm, first.rounds, first.cohort
        self.local_steps, self.check_state = first.local_steps, False
        self.evaluator, self.measure_every = measure, measure_every
        self.engine = _Engines(self.runs)
        self.worker_pool = WorkerPool(workers, threads)
        self.underway = False
        self._state = self._joined(Totals())

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        assert isinstance(state.shared, Models)
        counts = state.shared.totals.tolist()
        members = (0,) if state.round else ()
        for run, (shared, buffers), row in zip(self.runs, state.shared.each, counts, strict=True):
            gradients, samples, *_ = row
            totals = Totals(gradients, int(samples))
            run.state = State(shared, buffers, state.round, members, totals)
        self._state = state

    def _joined(self, before: Totals) -> State:
        states = [run.state for run in self.runs]
        own = [state.totals for state in states]
        totals = before._replace(
            gradients=sum(one.gradients for one in own), samples=sum(one.samples for one in own)
        )
        counts = torch.tensor([[one.gradients, one.samples] for one in own], dtype=torch.float64)
        each = tuple((state.shared, state.buffers) for state in states)
        mean = _mean([state.shared.x for state in states])
        buffers = tuple(map(_mean, zip(*(state.buffers for state in states), strict=True)))
        return State(Models(mean, each, counts), buffers, states[0].round, (), totals)

    def round(self) -> Record:
        began = time.perf_counter()
        before, kept = self._state, self.engine.snapshot()
        self.underway = True
        try:
            jobs = [partial(_round, client, run) for client, run in enumerate(self.runs)]
            losses = [record.train_loss for record in self.worker_pool.in_order(jobs)]
            state = self._joined(before.totals)
            seconds = state.totals.seconds + time.perf_counter() - began
            state = state._replace(totals=state.totals._replace(seconds=seconds))
            record = self._of_round(state, [loss for loss in losses if loss is not None])
        except BaseException as error:
            self.engine.restore(kept)
            self.state = before
            if isinstance(error, Diverged):
                error.x = before.shared.x
            raise
        finally:
            self.underway = False
        self._state = state
        return record

    def _of_round(self, state: State, losses: Sequence[float]) -> Record:
        number = state.round
        wanted = number == self.rounds or number % self.measure_every == 0
        found = {}
        if self.evaluator is not None and wanted:
            assert isinstance(state.shared, Models)
            models = [(shared.x, buffers) for shared, buffers in state.shared.each]
            found = self.evaluator.of_models(models)
        return Record(
            round=number,
            steps=number * self.local_steps,
            **state.totals._asdict(),
            clients=len(self.runs),
            train_loss=sum(losses) / len(losses) if losses else None,
            train=dict(found.get("train", {})),
            test=dict(found.get("test", {})),
            validation=dict(found.get("validation", {})),
            clients_test=dict(found.get("clients_test", {})),
            client_values=dict(found.get("client_values", {})),
        )


def _round(client: int, run: Run) -> Record:
    try:
        return run.round()
    except Diverged as error:  # it knows its client as the only one
        told = str(error).replace("client 0", f"client {client}", 1)
        raise Diverged(told, client, error.round) from error


def _mean(leaves: Sequence[Tensor]) -> Tensor:
    total = leaves[0].clone()
    for leaf in leaves[1:]:
        total += leaf
    return total / len(leaves) if total.is_floating_point() else leaves[0]


class _Engines(Engine):
    """The engines of the clients' runs, for checkpoints."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.engines = [run.engine for run in runs]

    @property
    def name(self) -> str:
        return self.engines[0].name

    @property
    def population(self) -> int:
        return len(self.engines)

    @property
    def objective(self) -> Objective:
        return self.engines[0].objective

    def deliver(self, *arguments: object, **named: object) -> NoReturn:
        raise NotImplementedError("clients that train alone send nothing")

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def snapshot(self) -> Snapshot:
        return Snapshot([engine.snapshot().states[0] for engine in self.engines], {})

    def restore(self, snapshot: Snapshot) -> None:
        for engine, state in zip(self.engines, snapshot.states, strict=True):
            engine.restore(Snapshot([state], {}))
