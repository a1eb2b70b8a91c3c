"""Ctrl-C and SIGTERM, sent to real processes: what was finished is saved before they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from small import write_data, write_experiment

from fafed.experiments import checkpoint
from fafed.experiments.rundir import all_runs

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "fafed"]


@pytest.fixture
def start(tmp_path):
    """Starts commands in sessions of their own, as a terminal does, and leaves none behind."""
    started = []
    write_data(tmp_path / "data")
    changes = {"rounds": 100_000, "checkpoint_every": 100_000, "eval_every": 1000}
    toml = write_experiment(tmp_path / "small.toml", tmp_path / "data", engine="loop", **changes)

    def command(head, verb, *options):
        words = [sys.executable, *head, verb, str(toml), "--runs", str(tmp_path / "runs"), *options]
        process = subprocess.Popen(
            words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield command
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def under_way(root, count, process):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        places = all_runs(root)
        if len(places) == count and all(place.round() > 5 for place in places):
            return places
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def saved(places):
    for place in places:
        newest = checkpoint.found(place.checkpoints)[0]
        checkpoint.verify(newest, place.experiment().digest)
        assert checkpoint.round_of(newest) == place.round() == len(place.records()) > 5


@pytest.mark.waits
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_run_that_is_stopped(start, tmp_path, number, code):
    process = start(["-m", "fafed"], "run")
    places = under_way(tmp_path / "runs", 1, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "interrupted: what was finished is saved" in errors
    saved(places)


@pytest.mark.waits
def test_a_comparison_that_is_stopped(start, tmp_path):
    """Ctrl-C in a terminal reaches all its processes."""
    process = start(["-m", "fafed"], "compare", "--algorithms", "fedavg,fafed", "-j", "2")
    places = under_way(tmp_path / "runs", 2, process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    saved(places)


@pytest.mark.slow
def test_a_comparison_whose_parent_is_killed(start, tmp_path):
    process = start(["-m", "fafed"], "compare", "--algorithms", "fedavg,fafed", "-j", "2")
    places = under_way(tmp_path / "runs", 2, process)
    process.kill()
    process.communicate(timeout=60)  # until the workers have closed the pipes
    saved(places)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ranks_that_are_stopped(start, tmp_path, number):
    """The clients' states are on both ranks: they stop after the same round, together."""
    process = start(TORCHRUN, "run")
    places = under_way(tmp_path / "runs", 1, process)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "Traceback" not in errors.split("torch/distributed")[0], errors
    saved(places)
