"""Worker threads: several jobs at once, results in order.

Every worker uses the same number of torch threads, so a result depends on the job alone. Workers
are threads, not processes: torch releases the interpreter's lock while it computes, and data,
vectors and states need not be copied.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from fafed.core.arguments import checked

T = TypeVar("T")


def cores() -> int:
    """The number of cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


class WorkerPool:
    """A number of workers (None: one per core), each with a number of torch threads. A single
    worker is the calling thread itself."""

    def __init__(self, workers: int | None = None, threads: int = 1) -> None:
        workers = checked("workers", workers)
        self.workers = cores() if workers is None else workers
        self.threads = checked("threads", threads)
        self._pool: ThreadPoolExecutor | None = None

    def in_order(self, jobs: Iterable[Callable[[], T]]) -> Iterator[T]:
        """The results of the jobs. Each worker has at most one unfinished or unread job."""
        if self.workers == 1:
            yield from (self._here(job) for job in jobs)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.workers, "fafed", torch.set_num_threads, (self.threads,)
            )
        waiting: deque[Future[T]] = deque()
        try:
            for job in jobs:
                waiting.append(self._pool.submit(job))
                if len(waiting) > self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # after an error in one job, wait until the other jobs have ended
            for future in waiting:
                future.cancel()
            for future in waiting:
                if not future.cancelled():
                    future.exception()

    def _here(self, job: Callable[[], T]) -> T:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            return job()
        finally:
            torch.set_num_threads(before)
