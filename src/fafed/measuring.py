"""What is measured after a round: the server's model on data that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from fafed.algorithm import Batch
from fafed.engines.crew import Crew
from fafed.objective import Metric, Model
from fafed.run import Measure

Parts = Mapping[str, Callable[[], Iterable[Batch]]]  # of "train", "test" and "validation"


def measuring(
    objective: Model,
    parts: Parts,
    metrics: Mapping[str, Metric],
    *,
    workers: int | None = None,
    threads: int = 1,
) -> Measure | None:
    """Means over the examples of each part; None if there is nothing to measure on.

    Batches are shared among workers, and a text, whose batches follow from one another, goes to
    one of them as a whole. No digit depends on who computes what.
    """
    crew = Crew(workers, threads)

    def measure(x: Tensor, buffers: tuple[Tensor, ...]) -> dict[str, dict[str, float]]:
        jobs = [
            (part, partial(objective.totals, x, buffers, job, metrics))
            for part, batches in parts.items()
            for job in ([batches()] if objective.recurrent else ([batch] for batch in batches()))
        ]
        counts = dict.fromkeys(parts, 0)
        sums = {part: dict.fromkeys(["loss", *metrics], 0.0) for part in parts}
        results = crew.in_order(job for _, job in jobs)
        for (part, _), (count, totals) in zip(jobs, results, strict=True):
            counts[part] += count
            for name, total in totals.items():
                sums[part][name] += total
        return {
            part: {name: total / counts[part] for name, total in totals.items()}
            for part, totals in sums.items()
        }

    return measure if parts else None


def chunks(data: tuple[Tensor, ...], size: int = 1000) -> Iterator[Batch]:
    """A dataset in order."""
    key = torch.zeros((), dtype=torch.int64)
    fresh = torch.ones((), dtype=torch.bool)
    for i in range(0, len(data[0]), size):
        yield Batch(tuple(part[i : i + size] for part in data), key, fresh)
