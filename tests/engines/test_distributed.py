"""Several real processes give the numbers of the loop engine, and fail together."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from on_ranks import ROUNDS, SAVED, STEPS, cases, plain, secure_cases
from problem import Problem

import fafed
from fafed import Mime
from fafed.experiments import checkpoint

SCRIPT = Path(__file__).parents[1] / "helpers" / "on_ranks.py"
FAFED = Path(fafed.__file__).parents[1]  # the processes test the same one


@contextlib.contextmanager
def started(ranks, case, folder):
    """The processes as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent.parent), str(FAFED)]),
    }
    command = [sys.executable, "-W", "error", str(SCRIPT), case, str(folder)]
    processes = [
        subprocess.Popen(command, env=os.environ | common | {"RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def outcome(folder, rank):
    return json.loads((folder / f"rank-{rank}.json").read_text("utf-8"))


def tolerance(x):
    return 1e-6 if x.dtype == torch.float32 else 1e-12


def near(found, x):
    """Relative, in the norm of the trajectory."""
    wide = x.double()
    return (torch.tensor(found, dtype=wide.dtype) - wide).norm() <= tolerance(x) * wide.norm()


def simulated(folder, ranks):
    """The loop's trajectories, and its checkpoints after some rounds."""
    for label, algorithm, problem, options in (*cases(ranks), *secure_cases(ranks)):
        run = problem.run(algorithm, STEPS, ROUNDS, **options | {"engine": "loop"})
        xs, records = [], []
        for record in run:
            xs.append(run.state.shared.x)
            records.append(plain(record))
            if record.round == SAVED:
                checkpoint.save(run, folder / label, "d")
        yield label, (algorithm, problem, options), torch.stack(xs), records


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_algorithm_gives_the_numbers_of_the_loop(ranks, tmp_path):
    expected = list(simulated(tmp_path / "simulated", ranks))
    with started(ranks, "laws", tmp_path) as processes:
        assert [process.wait(timeout=120) for process in processes] == [0] * ranks
    found = [outcome(tmp_path, rank) for rank in range(ranks)]
    for label, (algorithm, problem, options), xs, records in expected:
        ours = [rank[label] for rank in found]
        for one in ours:
            assert one["xs"] == ours[0]["xs"], label  # to the last digit on every rank
            assert near(one["xs"], xs), label
            assert near(one["again"], xs[-1]), label
            if label.startswith("secure"):  # sums of integers do not depend on the ranks
                assert one["xs"] == xs.tolist(), label
                assert one["again"] == xs[-1].tolist(), label
        for got, due in (("records", records), ("rest", records[SAVED:])):
            for a, b in zip(ours[0][got], due, strict=True):
                exact = label.startswith("secure")
                assert a == (b if exact else pytest.approx(b, rel=10 * tolerance(xs))), label
        exchanges = len(algorithm.opening()) + ROUNDS * len(algorithm.exchanges())
        if "too large" not in label:  # those exchanges are made again, or nobody answers
            assert ours[0]["reduced"] == exchanges, label
        for rank, one in enumerate(ours):
            assert all(client % ranks == rank for client in one["own"])
        # what the ranks have saved is what the simulation has, and it goes on from there
        (saved,), (twin,) = (
            checkpoint.found(tmp_path / who / label) for who in ("by ranks", "simulated")
        )
        a, b = checkpoint.verify(saved, "d"), checkpoint.verify(twin, "d")
        assert set(a) == set(b), label
        for name in a:
            assert near(a[name].tolist(), b[name]), f"{label}: {name}"
        alone = problem.run(algorithm, STEPS, ROUNDS, **options)
        checkpoint.load(alone, saved, "d")
        list(alone)
        assert near(alone.state.shared.x.tolist(), xs[-1]), label


def test_an_error_on_one_rank_is_an_error_on_all(tmp_path):
    with started(2, "errors", tmp_path) as processes:
        assert [process.wait(timeout=60) for process in processes] == [0, 3]
    zero, one = outcome(tmp_path, 0), outcome(tmp_path, 1)
    assert zero["diverged"] == one["diverged"]
    client, text = zero["diverged"]
    assert client == 1  # as in simulation, though client 2, on the other rank, was ready first
    assert "round 1: client 1 produced a non-finite loss" in text
    assert one["failed"] == "ValueError: no such example"
    assert zero["failed"] == "RankFailed: rank 1 has failed: ValueError: no such example"
    assert zero["rolled back"] == one["rolled back"] == [True, True, True]
    x = Problem(4).xs(Mime(0.05), STEPS, 3)[-1]  # what failed is made again
    assert near(zero["x"], x)
    assert near(one["x"], x)
    assert zero["left"] == "rank 1 has failed: DataError: a file is missing"


def test_a_rank_that_does_not_answer_in_time_stops_the_others(tmp_path):
    with started(2, "silence", tmp_path) as (waiting, _):
        assert waiting.wait(timeout=120) == 0
    error, seconds = outcome(tmp_path, 0)
    assert error.startswith("rank 0 of 2 has lost another rank")
    assert "has not answered for 2 s" in error
    assert "the same command goes on" in error
    assert 1.5 < seconds < 10
