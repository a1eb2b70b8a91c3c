"""Evaluation of the server's model after a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.batch import Batch
from fafed.data.sources.examples import Columns
from fafed.engines.worker_pool import WorkerPool
from fafed.objectives.base import Metric
from fafed.objectives.metrics import accuracy
from fafed.objectives.module import Model
from fafed.training.loop import Measure

Parts = Mapping[str, Callable[[], Iterable[Batch]]]  # keys: "train", "test", "validation"


def evaluator(
    objective: Model,
    parts: Parts,
    metrics: Mapping[str, Metric],
    *,
    workers: int | None = None,
    threads: int = 1,
) -> Measure | None:
    """A function that returns the means over the examples of each part; None without data.

    Labels that the loss or a metric ignores do not count (`fafed.objectives.labels`).
    `fafed.metrics.accuracy` ignores the same labels as the loss.

    Workers share the batches. The batches of a text depend on each other, so one worker reads the
    whole text. No digit depends on which worker computes what.
    """
    worker_pool = WorkerPool(workers, threads)
    ignored = objective.averaged.ignored
    if ignored is not None:
        bound = partial(accuracy, ignore_index=ignored)
        metrics = {name: bound if own is accuracy else own for name, own in metrics.items()}

    def measure(x: Tensor, buffers: tuple[Tensor, ...]) -> dict[str, dict[str, float]]:
        jobs = [
            (part, partial(objective.totals, x, buffers, job, metrics))
            for part, batches in parts.items()
            for job in ([batches()] if objective.recurrent else ([batch] for batch in batches()))
        ]
        sums = {part: dict.fromkeys(["loss", *metrics], (0.0, 0.0)) for part in parts}
        results = worker_pool.in_order(job for _, job in jobs)
        for (part, _), found in zip(jobs, results, strict=True):
            for name, (total, count) in found.items():
                before, counted = sums[part][name]
                sums[part][name] = before + total, counted + count
        return {
            part: {name: total / n if n else math.nan for name, (total, n) in found.items()}
            for part, found in sums.items()
        }

    return measure if parts else None


def chunks(data: Columns, size: int | None = None) -> Iterator[Batch]:
    """A dataset in order. Batches of a mapping are smaller: a language model has an output for each
    token and each word that it knows."""
    if size is None:
        size = 50 if isinstance(data, dict) else 1000
    key = torch.zeros((), dtype=torch.int64)
    fresh = torch.ones((), dtype=torch.bool)
    for i in range(0, len(tree.leaves(data)[0]), size):
        yield Batch(tree.take(data, slice(i, i + size)), key, fresh)
