"""Whole experiments under a real torchrun, with ranks that are really killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import experiment, write_data, write_experiment
from typer.testing import CliRunner

import fafed
from fafed import ConfigError
from fafed.cli import app
from fafed.experiments import checkpoint
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir, all_runs


@pytest.fixture
def data(tmp_path):
    write_data(tmp_path / "data", clients=5)
    return tmp_path / "data"


@pytest.fixture
def torchrun():
    """Starts jobs, and leaves none behind."""
    jobs = []

    def start(ranks, *arguments, restarts=0):
        launcher = ["--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        command = [sys.executable, "-m", "torch.distributed.run", *launcher, "-m", "fafed"]
        pipe = subprocess.PIPE
        words = [*command, *map(str, arguments)]
        jobs.append(subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True))
        return jobs[-1]

    yield start
    for job in jobs:
        job.terminate()  # its ranks with it
        job.communicate()


def kill(job, rank):
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    for child in map(int, children):
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            os.kill(child, signal.SIGKILL)
            return
    raise AssertionError(f"torchrun has no rank {rank}")


def reached(place, round, job, seconds=60):
    end = time.monotonic() + seconds
    while place.round() < round:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < end, f"round {round} was not reached"
        time.sleep(0.02)


def stop_at(round):
    def look(record):
        if record.round == round:
            raise KeyboardInterrupt

    return look


def final(place):
    (path, *_) = checkpoint.found(place.checkpoints)
    return checkpoint.verify(path, place.experiment().digest)


def same(calm, place):
    """Records and states, up to the rounding of sums in another order."""
    for a, b in zip(calm.records(), place.records(), strict=True):
        assert {**a.flat(), "seconds": 0} == pytest.approx({**b.flat(), "seconds": 0}, rel=1e-5)
    a, b = final(calm), final(place)
    assert set(a) == set(b)
    assert sum(name.startswith("client.") for name in a) == 5  # each keeps a vector
    for name, leaf in a.items():
        wide = leaf.double()
        assert (wide - b[name].double()).norm() <= 1e-6 * wide.norm(), name
    ours, theirs = (fafed.load(one.path).state_dict() for one in (calm, place))
    for name, leaf in ours.items():
        assert (leaf - theirs[name]).norm() <= 1e-6 * leaf.norm(), name


@pytest.mark.slow
def test_killed_ranks_and_another_number_of_them_go_on_with_the_same_trajectory(
    data, tmp_path, torchrun
):
    e = Experiment.from_dict(experiment(data, rounds=60, eval_every=20, engine="loop"))
    calm, place = RunDir(tmp_path / "calm"), RunDir(tmp_path / "run")
    execute(e, calm)
    with pytest.raises(KeyboardInterrupt):  # begun in simulation
        execute(e, place, stop_at(3))

    job = torchrun(3, "resume", place.path, "--timeout", 20)
    reached(place, 10, job)
    kill(job, 1)
    began = time.monotonic()
    _, errors = job.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert job.returncode != 0
    assert "error: rank 0 of 3 " in errors
    assert f"The last checkpoint is safe: `fafed resume {place.path}`" in errors
    assert not place.finished()

    # this time torchrun itself starts them again
    job = torchrun(2, "resume", place.path, "--timeout", 20, restarts=1)
    reached(place, place.round() + 10, job)
    kill(job, 0)
    output, errors = job.communicate(timeout=60)
    assert job.returncode == 0, errors
    assert output.splitlines()[0] == str(place.path)  # rank 0 alone speaks
    assert len(output.splitlines()) == 2
    same(calm, place)


def test_divergence_is_kept_and_told_once(data, tmp_path, torchrun):
    wild = {"name": "fedavg", "eta": 1e38}
    toml = write_experiment(tmp_path / "wild.toml", data, engine="loop", algorithm=wild)
    job = torchrun(2, "run", toml, "--runs", tmp_path / "runs")
    _, errors = job.communicate(timeout=60)
    assert job.returncode != 0
    assert errors.count("client 0 produced a non-finite") == 1
    (place,) = all_runs(tmp_path / "runs")
    assert "try a smaller eta" in place.failure()


def call(*arguments):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(done.exception, ConfigError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_one_rank_is_the_simulation(data, tmp_path, monkeypatch):
    toml = write_experiment(tmp_path / "small.toml", data)
    call("run", toml, "--runs", tmp_path / "alone")
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ConfigError, match="not MASTER_PORT: start with `torchrun"):
        call("run", toml, "--runs", tmp_path / "one")
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch puts its own there
    for _ in range(2):  # the second time it is finished
        last = json.loads(call("run", toml, "--runs", tmp_path / "one", "--json"))["last"]
    (alone,), (one,) = all_runs(tmp_path / "alone"), all_runs(tmp_path / "one")
    assert last["round"] == 6
    same(alone, one)


@pytest.mark.parametrize("command", ["compare", "tune", "report"])
def test_what_makes_no_sense_on_several_ranks_is_refused(command, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=f"fafed {command} does not run on several ranks"):
        call(command, "mnist-low")
