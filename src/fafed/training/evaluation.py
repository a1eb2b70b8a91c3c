"""Evaluation of the server's model after a round: on common data, and on each client's own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from fafed.core import randomness, tree, vectors
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.arguments import checked
from fafed.core.batch import Batch
from fafed.core.records import MOST_CLIENTS, higher_is_better, summary
from fafed.core.schedules import Rate, Schedule, at
from fafed.data.client_test import part_name
from fafed.data.sources.base import Source
from fafed.data.sources.lazy import LazyPart
from fafed.data.sources.tensors import Columns
from fafed.engines.client import Oracle
from fafed.engines.worker_pool import WorkerPool
from fafed.errors import ConfigError, FafedError
from fafed.objectives.base import Memory, Metric, Totals
from fafed.objectives.metrics import as_mean, bound, has_state, one_number, seen_by
from fafed.objectives.module import Model

Part = Callable[[], Iterable[Batch]]
Parts = Mapping[str, Part]  # keys: "train", "test", "validation"
EVAL_BATCH_SIZE = 1000  # examples in one forward pass
EVAL_MAPPING_SIZE = 50  # the same if batches are mappings
PROBED = 8  # examples that metrics are tried on before the first round
K = TypeVar("K")


class Personal:
    """The models of clients that have adapted the server's model to their own data.

    A client makes some SGD steps from the server's model, on batches of its own training data.
    These batches are drawn apart from those of the run, so nothing in the run changes. Clipping,
    weight decay and buffers are as in a local step of the run. If the step size is a schedule, all
    these steps have that of the last step before the evaluation.
    """

    def __init__(self, source: Source, steps: int, eta: Rate, seed: int) -> None:
        self.source, self.steps, self.eta, self.seed = source, steps, eta, seed
        self.drawn: Source | None = None

    def model(
        self, objective: Model, client: int, x: Tensor, buffers: tuple[Tensor, ...], step: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The client's vector and buffers. The server's model has made `step` local steps."""
        draws = self._source().draw(("round",), client, step, self.steps)
        batches = [objective.here(one) for one in self._source().batches(draws)]
        oracle = Oracle(objective, Memory(buffers))
        rate = at(self.eta, torch.tensor(max(1, step)))
        for batch in batches:
            x = vectors.step(x, rate, oracle(x, batch))
        return x, oracle.after.buffers

    def _source(self) -> Source:
        if self.drawn is None:  # now, not earlier: the data may have moved to another device
            key = int(randomness.keys("personalise", self.seed)) >> 1  # a seed has 63 bits
            self.drawn = self.source.with_seed(key)
        return self.drawn


def personal(
    algorithm: AnyAlgorithm,
    source: Source,
    tests: Sequence[object],
    steps: int,
    eta: Rate | None,
    seed: int,
    *,
    rounds: int,
    local_steps: int,
) -> Personal | None:
    """What `personalise` asks for, if it does. Without `eta`, the step size is the algorithm's."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ConfigError(f"personalise must be a number of local steps, got {steps!r}")
    if steps and not tests:
        raise ConfigError(
            f"personalise={steps} needs test data of each client: give client_test, such as 0.2"
        )
    rate = getattr(algorithm, "eta", None) if eta is None else eta
    if not steps:
        return None
    if isinstance(rate, Schedule):
        rate = rate.bound(rounds * local_steps)
    elif not callable(rate) and not (isinstance(rate, int | float) and rate > 0):
        raise ConfigError(
            f"personalise={steps} needs a step size above 0, got {rate!r}: give personalise_eta"
        )
    return Personal(source, steps, rate, seed)


class Evaluator:
    """Computes the loss and the metrics of a model on each part of the data.

    Labels that the loss or a metric ignores do not count (`fafed.objectives.labels`). The metrics
    in `fafed.metrics` ignore the same labels as the loss.

    Workers share the batches. The batches of a text depend on each other, so one worker reads the
    whole text. Metrics see the batches in order. No digit depends on which worker computes what.
    """

    def __init__(
        self,
        objective: Model,
        parts: Parts,
        metrics: Mapping[str, Metric],
        *,
        clients: Sequence[Part] = (),
        personal: Personal | None = None,
        workers: int | None = None,
        threads: int = 1,
    ) -> None:
        """clients: the test data of each client. personal: how they adapt the model, if they do."""
        self.personal = personal
        self.objective, self.parts = objective, dict(parts)
        self.clients = dict(enumerate(clients))
        self.worker_pool = WorkerPool(workers, threads)
        self.means: dict[str, Callable[..., Any]] = {}
        self.finish: dict[str, Callable[[float], float]] = {"loss": float}
        self.whole: dict[str, Callable[..., Any]] = {}
        self.stateful: dict[str, Any] = {}
        self.higher = {"loss": False}
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                "metrics must map names to metrics, such as {'accuracy': fafed.metrics.accuracy}, "
                f"got {metrics!r}"
            )
        for name, metric in metrics.items():
            self._sort(name, metric)
        self.names = ["loss", *metrics]

    def _sort(self, name: str, given: Metric) -> None:
        if name == "loss":
            raise ConfigError("a metric cannot be called 'loss': the loss is always evaluated")
        metric: Any = bound(given, self.objective.averaged.ignored)
        own = getattr(given, "higher_is_better", None)
        self.higher[name] = own if isinstance(own, bool) else higher_is_better(name)
        if has_state(metric):
            self.stateful[name] = metric
        elif not callable(metric):
            raise ConfigError(
                f"metric {name!r} is a {type(metric).__name__}: give a function of (outputs, "
                "targets), or an object with update, compute and reset"
            )
        elif (found := as_mean(metric)) is not None:
            self.means[name], self.finish[name] = found
        else:
            self.whole[name] = metric

    def __call__(
        self, x: Tensor, buffers: tuple[Tensor, ...], step: int = 0
    ) -> dict[str, Mapping[str, Any]]:
        """Part -> name -> number. With test data of the clients, also the summaries over them.
        `step` is the number of local steps made so far."""
        found = self._of_parts(x, buffers, self.parts)
        result: dict[str, Mapping[str, Any]] = {part: one for part, (one, _) in found.items()}
        if self.clients:
            result |= self._of_clients(x, buffers, step)
        return result

    def _of_clients(
        self, x: Tensor, buffers: tuple[Tensor, ...], step: int
    ) -> dict[str, Mapping[str, Any]]:
        found = {"clients_test": self._of_parts(x, buffers, self.clients)}
        if self.personal is not None:
            jobs = (
                (i, partial(self._personal, self.personal, i, x, buffers, step))
                for i in self.clients
            )
            found["personalised"] = self._collected(self.clients, jobs)
        result: dict[str, Mapping[str, Any]] = {}
        values: dict[str, dict[str, list[float]]] = {}
        for part, own in found.items():
            columns = {name: [one[name] for one, _ in own.values()] for name in self.names}
            examples = [count for _, count in own.values()]
            result[part] = self._summaries(columns, examples)
            values[part] = columns
        if len(self.clients) <= MOST_CLIENTS:
            result["client_values"] = values
        return result

    def of_models(
        self, models: Sequence[tuple[Tensor, tuple[Tensor, ...]]]
    ) -> dict[str, Mapping[str, Any]]:
        """For clients with a model each: means over the models on the common data, and a summary
        of each model on its client's own test data."""

        def jobs() -> Iterator[tuple[tuple[int, str], Callable[[], Totals]]]:
            for i, (x, buffers) in enumerate(models):
                own = {"clients_test": self.clients[i]} if self.clients else {}
                for name, part in (self.parts | own).items():
                    yield (i, name), partial(self._totals, x, buffers, part())

        names = [*self.parts, *(["clients_test"] if self.clients else [])]
        keys = [(i, name) for i in range(len(models)) for name in names]
        found = self._collected(keys, jobs())
        result: dict[str, Mapping[str, Any]] = {}
        values: dict[str, dict[str, list[float]]] = {}
        for part in names:
            own = [found[i, part] for i in range(len(models))]
            values[part] = {name: [one[name] for one, _ in own] for name in self.names}
            over = self._summaries(values[part], [count for _, count in own])
            means = {name: one["mean"] for name, one in over.items()}
            result[part] = over if part == "clients_test" else means
        if len(models) <= MOST_CLIENTS:
            result["client_values"] = values
        return result

    def _summaries(
        self, columns: Mapping[str, Sequence[float]], examples: Sequence[int]
    ) -> dict[str, dict[str, float]]:
        return {
            name: summary(column, examples, higher=self.higher[name])
            for name, column in columns.items()
        }

    def _of_parts(
        self, x: Tensor, buffers: tuple[Tensor, ...], parts: Mapping[K, Part]
    ) -> dict[K, tuple[dict[str, float], int]]:
        """For each part its numbers, and how many examples it has."""

        def jobs() -> Iterator[tuple[K, Callable[[], Totals]]]:
            for key, batches in parts.items():
                whole: Iterable[Iterable[Batch]] = (
                    [batches()] if self.objective.recurrent else ([one] for one in batches())
                )
                for job in whole:
                    yield key, partial(self._totals, x, buffers, job)

        return self._collected(parts, jobs())

    def _personal(
        self, personal: Personal, client: int, x: Tensor, buffers: tuple[Tensor, ...], step: int
    ) -> Totals:
        own = personal.model(self.objective, client, x, buffers, step)
        return self._totals(*own, self.clients[client]())

    def _totals(self, x: Tensor, buffers: tuple[Tensor, ...], batches: Iterable[Batch]) -> Totals:
        keep = bool(self.whole or self.stateful)
        return self.objective.totals(x, buffers, batches, self.means, keep=keep)

    def _collected(
        self, keys: Iterable[K], jobs: Iterable[tuple[K, Callable[[], Totals]]]
    ) -> dict[K, tuple[dict[str, float], int]]:
        """Run the jobs. Those of one key follow each other."""
        result: dict[K, tuple[dict[str, float], int]] = {}
        current, collected = None, _Collected(self)
        tagged = (partial(_with_key, key, job) for key, job in jobs)
        for key, totals in self.worker_pool.in_order(tagged):
            if key != current:
                if current is not None:
                    result[current] = collected.result()
                current, collected = key, _Collected(self)
            collected.add(totals)
        if current is not None:
            result[current] = collected.result()
        return {key: result[key] if key in result else _Collected(self).result() for key in keys}

    def all_parts(self) -> dict[str, Part]:
        """Everything that is evaluated on, by a name for errors."""
        return {**self.parts} | {part_name(i): part for i, part in self.clients.items()}

    def check(self) -> None:
        """Try every metric on a few examples of every part, at the first weights. So what cannot
        work is refused before the first round. The data must have passed their own checks."""
        x, buffers = self.objective.x0, self.objective.start().buffers
        for name, part in self.all_parts().items():
            with warnings.catch_warnings():  # few examples may have one class alone
                warnings.simplefilter("ignore")
                try:
                    self._of_parts(x, buffers, {name: partial(_few, part)})
                except Exception:  # a metric may need more than a few examples
                    self._refuse(name, part)

    def _refuse(self, name: str, part: Part) -> None:
        x, buffers = self.objective.x0, self.objective.start().buffers
        try:
            self._of_parts(x, buffers, {name: part})
        except FafedError as cause:
            raise ConfigError(f"{name}: {cause}") from cause
        except Exception as cause:
            kind = type(self.objective.module).__name__
            raise ConfigError(
                f"{name}: {kind} cannot be evaluated on it: {type(cause).__name__}: {cause}; "
                "change the data or the metrics"
            ) from cause


class _Collected:
    """What was found so far on one part of the data."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.sums = dict.fromkeys(["loss", *evaluator.means], (0.0, 0.0))
        self.examples = 0
        self.kept: list[tuple[Any, Any]] = []
        for metric in evaluator.stateful.values():
            metric.reset()

    def add(self, totals: Totals) -> None:
        self.examples += totals.examples
        for name, (total, count) in totals.sums.items():
            before, counted = self.sums[name]
            self.sums[name] = before + total, counted + count
        for outputs, targets in totals.outputs:
            for name, metric in self.evaluator.stateful.items():
                _called(name, partial(metric.update, *seen_by(metric, outputs, targets)))
        if self.evaluator.whole:
            self.kept += totals.outputs

    def result(self) -> tuple[dict[str, float], int]:
        found = {
            name: self.evaluator.finish[name](total / n) if n else math.nan
            for name, (total, n) in self.sums.items()
        }
        for name, metric in self.evaluator.stateful.items():
            if self.examples:
                found[name] = one_number(name, _called(name, metric.compute))
            metric.reset()
        if self.kept:
            outputs, targets = (_joined(list(part)) for part in zip(*self.kept, strict=True))
            for name, metric in self.evaluator.whole.items():
                found[name] = one_number(name, _called(name, partial(metric, outputs, targets)))
        return {name: found.get(name, math.nan) for name in self.evaluator.names}, self.examples


def evaluator(
    objective: Model,
    parts: Parts,
    metrics: Mapping[str, Metric],
    *,
    clients: Sequence[Part] = (),
    personal: Personal | None = None,
    workers: int | None = None,
    threads: int = 1,
) -> Evaluator | None:
    """An `Evaluator`; None without data."""
    if not parts and not clients:
        return None
    return Evaluator(
        objective,
        parts,
        metrics,
        clients=clients,
        personal=personal,
        workers=workers,
        threads=threads,
    )


def chunks(data: Columns, size: int | None = None) -> Iterator[Batch]:
    """A dataset in order, `size` examples at a time. By default batches of a mapping are smaller: a
    language model has an output for each token and each word that it knows."""
    if size is None:
        size = EVAL_BATCH_SIZE if isinstance(data, tuple) else EVAL_MAPPING_SIZE
    key = torch.zeros((), dtype=torch.int64)
    fresh = torch.ones((), dtype=torch.bool)
    for i in range(0, len(tree.leaves(data)[0]), size):
        yield Batch(tree.take(data, slice(i, i + size)), key, fresh)


def chunked(data: Columns | LazyPart, size: int | None = None) -> Part:
    """A dataset in order, as a part of an evaluation."""
    size = checked("eval_batch_size", size)
    return data.with_size(size) if isinstance(data, LazyPart) else partial(chunks, data, size)


def _with_key(key: K, job: Callable[[], Totals]) -> tuple[K, Totals]:
    return key, job()


def _few(part: Part) -> Iterator[Batch]:
    """A few examples of the first batch."""
    for batch in part():
        yield batch._replace(data=tree.take(batch.data, slice(PROBED)), examples=None)
        return


def _called(name: str, metric: Callable[[], Any]) -> Any:
    try:
        return metric()
    except FafedError:
        raise
    except Exception as cause:
        raise ConfigError(
            f"metric {name!r} failed: {type(cause).__name__}: {cause}; it must take the outputs "
            "and targets of this data, which for mappings are the model's output and the batch"
        ) from cause


def _joined(parts: list[Any]) -> Any:
    """One value from those of all batches. Tensors are joined along their first dimension."""
    first = parts[0]
    if isinstance(first, Tensor):
        if len({part.shape[1:] for part in parts}) > 1:
            shapes = sorted({tuple(part.shape) for part in parts})
            raise ConfigError(
                f"batches with outputs or targets of shapes {shapes} cannot be joined for a metric "
                "of the whole set: use an object with update, compute and reset, or mark the "
                "metric as a mean with fafed.metrics.mean"
            )
        return torch.cat(parts) if first.ndim else torch.stack(parts)
    if isinstance(first, Mapping):
        found = {key: _joined([part[key] for part in parts]) for key in first}
        return found if type(first) is dict else type(first)(**found)
    if isinstance(first, tuple | list):
        columns = [_joined(list(column)) for column in zip(*parts, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    return first
