"""Several workers give the same digits as one, and fail as one does."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from problem import Problem
from torch import nn

import fafed
from fafed import ALGORITHMS, ConfigError
from fafed.engines.worker_pool import WorkerPool


def test_results_come_in_the_order_of_the_jobs():
    def job(i: int) -> int:
        time.sleep(0.003 * (5 - i % 5))
        return i

    for workers in (1, 2, 4):
        jobs = [lambda i=i: job(i) for i in range(13)]
        assert list(WorkerPool(workers).in_order(jobs)) == list(range(13))


def test_few_jobs_are_under_way():
    """What the workers hold at a time is bounded: a message may be as large as the model."""
    begun = threading.Semaphore(0)
    results = WorkerPool(2).in_order([begun.release for _ in range(50)])
    next(results)
    time.sleep(0.05)
    assert begun._value <= 4


def test_after_an_error_nothing_goes_on():
    running = threading.Event()
    ended = threading.Event()

    def slow() -> None:
        running.set()
        time.sleep(0.05)
        ended.set()

    def bad() -> None:
        running.wait()
        raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        list(WorkerPool(2).in_order([bad, slow, *[slow] * 10]))
    assert ended.is_set()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_job_has_the_same_threads_whoever_runs_it(workers, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = list(WorkerPool(workers, threads).in_order([torch.get_num_threads] * 4))
        assert found == [threads] * 4
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True])
def test_bad_numbers_of_workers(workers):
    with pytest.raises(ConfigError, match="workers must be a positive integer"):
        WorkerPool(workers)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_same_digits(name, engine):
    algorithm = ALGORITHMS[name]()
    clients = algorithm.population or 5

    def final(workers: int) -> torch.Tensor:
        run = Problem(N=clients).run(algorithm, q=3, rounds=3, engine=engine, workers=workers)
        list(run)
        return run.state.shared.x

    assert torch.equal(final(1), final(3))


class Noisy(nn.Module):
    """Random in a way that only torch's one generator can make repeatable."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn_like(x)


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), Noisy(), nn.BatchNorm1d(8), nn.Tanh()],
    ids=["dropout", "noise", "batch norm", "in C"],
)
def test_models_with_randomness_or_buffers_or_in_c(layer):
    r = np.random.default_rng(0)
    data = [(r.normal(size=(20, 4)).astype(np.float32), r.integers(0, 3, 20)) for _ in range(6)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))
    found = [
        fafed.train(
            model,
            data,
            fafed.FAFED(eta=0.05),
            rounds=4,
            local_steps=3,
            batch_size=5,
            engine="loop",
            workers=workers,
        ).x
        for workers in (1, 3)
    ]
    assert torch.equal(*found)
