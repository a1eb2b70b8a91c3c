"""Many runs at once: a grid of experiments on a few processes, each in its own directory.

Finished runs are skipped and unfinished runs are resumed. So a comparison that was killed and
started again gives the same results as one that was never stopped.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

from fafed.engines.worker_pool import cores
from fafed.errors import FafedError
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.once import Once
from fafed.experiments.rundir import RunDir

GRACE = 30.0  # seconds that a worker has to save its run when it is stopped
OnTick = Callable[[Sequence[RunDir]], None]  # called regularly with the current runs


def grid(
    experiment: Experiment, algorithms: Sequence[str], seeds: int, baselines: Sequence[str] = ()
) -> list[Experiment]:
    """Every algorithm with its own settings, for seeds s, s+1, ..., and then the baselines with the
    experiment's own algorithm."""
    versions = [experiment.with_algorithm(name) for name in algorithms]
    for version in versions:
        version.check_everyone()
    versions += [experiment.changed(baseline=name) for name in baselines]
    first = experiment.seed
    return [
        version.changed(seed=seed)
        for version, seed in itertools.product(versions, range(first, first + seeds))
    ]


def run_all(
    experiments: Sequence[Experiment],
    root: Path,
    jobs: int,
    on_tick: OnTick | None = None,
    *,
    threads: int | None = None,
) -> list[RunDir]:
    """Run all unfinished experiments, `jobs` at a time. Return the directories in the same order.

    A run that diverges does not stop the other runs. Its directory says why it ended.
    """
    places = [RunDir.for_experiment(experiment, root) for experiment in experiments]
    todo = [
        (experiment, place)
        for experiment, place in zip(experiments, places, strict=True)
        if not place.finished() and place.failure() is None
    ]
    if not todo:
        return places
    context = multiprocessing.get_context("spawn")
    workers = min(jobs, len(todo))
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=follow, initargs=(os.getpid(),)
    )
    try:
        threads = threads or max(1, cores() // workers)
        futures = {pool.submit(_work, e.to_dict(), str(p.path), threads): p for e, p in todo}
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=0.3, return_when=FIRST_COMPLETED)
            for future in done:
                _raise_unless_diverged(future)
            if on_tick:
                on_tick([futures[f] for f in futures if f in pending or f in done])
    except BaseException:
        running = list(pool._processes.values())  # the pool drops them when it is shut down
        pool.shutdown(wait=False, cancel_futures=True)
        end(running)
        raise
    pool.shutdown()
    return places


def _work(content: dict[str, object], path: str, threads: int) -> str | None:
    """In a worker: make one run. Return the error if the run diverged."""
    from fafed.experiments.assemble import prepare
    from fafed.training.loop import Diverged

    place = RunDir(Path(path))
    try:
        execute(Experiment.from_dict(content), place, prepare=partial(prepare, workers=threads))
    except Diverged as error:
        return str(error)
    return None


def _raise_unless_diverged(future: Future[str | None]) -> None:
    error = future.exception()
    if error is not None:
        raise error if isinstance(error, FafedError) else FafedError(f"a run failed: {error!r}")


def follow(parent: int) -> None:
    """In a worker: end when the parent ends. Otherwise the worker would keep its run's lock. Ctrl-C
    reaches all processes of a terminal, but only the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("fafed").addFilter(Once())  # the runs of a worker warn of the same things

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)  # the handler saves finished rounds
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end(processes: Sequence[BaseProcess]) -> None:
    """Stop these workers. Each saves its finished rounds."""
    for process in processes:
        process.terminate()
    latest = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, latest - time.monotonic()))
        process.kill()
