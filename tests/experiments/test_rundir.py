"""Runs never lose work: real processes, really killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from small import experiment, write_data, write_experiment

from fafed import ALGORITHMS, Diverged, FafedError
from fafed.experiments import checkpoint
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.grid import run_all
from fafed.experiments.rundir import Busy, RunDir, all_runs

FEDERATED = [name for name, cls in ALGORITHMS.items() if not getattr(cls(), "population", None)]


@pytest.fixture
def data(tmp_path):
    write_data(tmp_path / "data")
    return tmp_path / "data"


def numbers(place):
    return [{**record.to_dict(), "seconds": 0} for record in place.records()]


def fafed(*arguments, **options):
    command = [sys.executable, "-m", "fafed", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_a_run_leaves_all_there_is_to_know(data, tmp_path):
    e = Experiment.from_dict(experiment(data))
    place = RunDir.for_experiment(e, tmp_path)
    execute(e, place)
    assert place.finished()
    assert place.experiment() == e
    assert [r.round for r in place.records()] == list(range(1, 7))
    environment = json.loads((place.path / "environment.json").read_text())
    assert {"fafed", "torch", "git", "threads", "engine"} <= set(environment)
    assert sum(map(sum, place.data().counts)) == 4 * 30
    assert len(checkpoint.found(place.checkpoints)) == 2
    assert [p.path for p in all_runs(tmp_path)] == [place.path]


EVERY_ALGORITHM = """
import os, random, signal, sys, time
from pathlib import Path
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir, all_runs

base, calm, killed = Experiment.read(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])

def start(root):
    # Forked before anything is computed, so that torch is imported once.
    if child := os.fork():
        return child
    for name in sys.argv[4].split(","):
        e = base.with_algorithm(name)
        place = RunDir.for_experiment(e, root)
        if not place.finished():
            execute(e, place)
    os._exit(0)

def rounds():
    return sum(place.round() for place in all_runs(killed))

def ended(child):
    done, status = os.waitpid(child, os.WNOHANG)
    assert status == 0
    return done == child

assert os.waitpid(start(calm), 0)[1] == 0
rng, kills, done = random.Random(0), 0, False
while not done:
    before, child = rounds(), start(killed)
    while not (done := ended(child)) and rounds() == before:
        time.sleep(0.02)
    time.sleep(rng.uniform(0.0, 0.6))
    if not done and not (done := ended(child)):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
print(kills)
"""


def same_runs(one, two):
    for place in all_runs(one):
        twin = RunDir(two / place.path.relative_to(one))
        assert numbers(place) == numbers(twin)
        digest = place.experiment().digest
        ours, theirs = (
            checkpoint.verify(checkpoint.found(p.checkpoints)[0], digest) for p in (place, twin)
        )
        assert set(ours) == set(theirs)
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), f"{place.path.name}: {name}"


def test_every_algorithm_killed_at_random_moments_goes_on_bit_for_bit(data, tmp_path):
    """ID-29, with SIGKILL."""
    toml = write_experiment(tmp_path / "small.toml", data, rounds=20)
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    words = [sys.executable, "-c", EVERY_ALGORITHM, toml, calm, killed, ",".join(FEDERATED)]
    done = subprocess.run([*map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) >= 2
    same_runs(calm, killed)


@pytest.mark.slow
def test_a_comparison_killed_and_restarted_ends_with_the_same_table(data, tmp_path):
    toml = write_experiment(tmp_path / "small.toml", data, rounds=60)
    common = ["compare", toml, "--algorithms", "fedavg,fafed", "--seeds", 2, "-j", 2, "--json"]

    def rows(root):
        process = fafed(*common, "--runs", root)
        table, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        return [{**row, "seconds": None} for row in json.loads(table)["rows"]]

    calm = rows(tmp_path / "calm")
    process = fafed(*common, "--runs", tmp_path / "killed")
    wait_for(lambda: any(p.round() > 3 for p in all_runs(tmp_path / "killed")))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert rows(tmp_path / "killed") == calm
    same_runs(tmp_path / "calm", tmp_path / "killed")


def interrupted(e, place, at):
    """Run in this process until round `at`, then break off."""

    class Stop(Exception):
        pass

    def stop(record):
        if record.round == at:
            raise Stop

    with pytest.raises(Stop):
        execute(e, place, stop)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(data, tmp_path, caplog):
    e = Experiment.from_dict(experiment(data))
    calm, hurt = RunDir(tmp_path / "calm"), RunDir(tmp_path / "hurt")
    execute(e, calm)
    interrupted(e, hurt, 4)
    newest = checkpoint.found(hurt.checkpoints)[0]
    newest.write_bytes(newest.read_bytes()[:200])
    execute(e, hurt)
    assert numbers(calm) == numbers(hurt)
    assert "is damaged" in caplog.text
    assert "trying the one before it" in caplog.text


def test_more_rounds_are_refused_if_they_would_change_earlier_ones(data, tmp_path):
    falling = {"name": "fedavg", "eta": {"schedule": "linear", "peak": 0.1}}
    e, place = Experiment.from_dict(experiment(data, algorithm=falling)), RunDir(tmp_path / "one")
    interrupted(e, place, 4)
    (place.path / "experiment.toml").write_text(e.changed(rounds=9).to_toml())
    with pytest.raises(
        FafedError, match=r"(?s)algorithm.eta follows the length of the run.*over = the num"
    ):
        execute(place.experiment(), place)
    execute(e, place)
    fixed = e.with_algorithm("fedavg", eta=falling["eta"] | {"over": 27})
    longer, whole = RunDir(tmp_path / "longer"), RunDir(tmp_path / "whole")
    execute(fixed, longer)
    execute(fixed.changed(rounds=9), longer)
    execute(fixed.changed(rounds=9), whole)
    assert [r.train_loss for r in longer.records()] == [r.train_loss for r in whole.records()]


def test_records_beyond_the_checkpoint_and_half_lines_are_dropped(data, tmp_path):
    e = Experiment.from_dict(experiment(data, checkpoint_every=2))
    calm, hurt = RunDir(tmp_path / "calm"), RunDir(tmp_path / "hurt")
    execute(e, calm)
    interrupted(e, hurt, 5)
    with (hurt.path / "records.jsonl").open("a") as file:
        file.write('{"round": 6, "ste')
    assert len(hurt.records()) == 5
    execute(e, hurt)
    assert numbers(calm) == numbers(hurt)


def test_a_second_process_is_refused(data, tmp_path):
    e = Experiment.from_dict(experiment(data))
    place = RunDir.for_experiment(e, tmp_path)
    with place.locked():
        toml = write_experiment(tmp_path / "small.toml", data)
        second = fafed("run", toml, "--runs", tmp_path)
        _, errors = second.communicate(timeout=60)
        assert second.returncode == 2
        assert "in use by another process" in errors
    with place.locked():  # free again
        pass


def test_ctrl_c_saves_and_resume_goes_on(data, tmp_path):
    toml = write_experiment(tmp_path / "small.toml", data, rounds=4000, checkpoint_every=1)
    process = fafed("run", toml, "--runs", tmp_path / "runs")
    (place,) = wait_for(lambda: [p for p in all_runs(tmp_path / "runs") if p.round() > 3])
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "saved" in errors
    stopped = place.round()
    assert checkpoint.found(place.checkpoints)
    # shorten it, so that the rest is quick: go on in a twin with the same state
    again = fafed("resume", place.path)
    wait_for(lambda: place.round() > stopped + 3)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=60)
    rounds = [r.round for r in place.records()]
    assert rounds == list(range(1, len(rounds) + 1))


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def test_a_full_disk_loses_nothing_that_was_saved(data, tmp_path):
    """Files may not grow beyond a limit: what the kernel does on a full disk, for one process."""
    e = Experiment.from_dict(
        experiment(data, rounds=40, model={"name": "mlp", "inputs": 6, "outputs": 3})
    )
    place = RunDir(tmp_path / "run")
    interrupted(e, place, 3)
    before = checkpoint.found(place.checkpoints)
    size = before[0].stat().st_size
    code = (
        "import resource, signal, sys; from pathlib import Path;"
        "from fafed.experiments.config import Experiment;"
        "from fafed.experiments.execute import execute;"
        "from fafed.experiments.rundir import *;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2}));"
        f"p = RunDir(Path({str(place.path)!r})); execute(p.experiment(), p)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "could not be written" in done.stderr
    assert "Free some space" in done.stderr
    assert checkpoint.found(place.checkpoints) == before
    execute(e, place)
    assert place.finished()


def test_a_full_disk_while_a_record_is_written(data, tmp_path):
    e = Experiment.from_dict(experiment(data))
    place = RunDir(tmp_path / "run")
    place.path.mkdir()
    (place.path / "records.jsonl").symlink_to("/dev/full")
    with pytest.raises(FafedError, match=r"records\.jsonl could not be written: .*No space left"):
        execute(e, place)


def test_no_password_is_kept(data, tmp_path, monkeypatch):
    command = ["fafed", "run", "--track", "mlflow:https://me:pass@word@host/path"]
    monkeypatch.setattr(sys, "argv", command)
    place = RunDir(tmp_path / "run")
    execute(Experiment.from_dict(experiment(data)), place)
    kept = json.loads((place.path / "environment.json").read_text())["command"]
    assert kept == [*command[:3], "mlflow:https://me:***@host/path"]


def test_no_name_leads_out_of_the_folder(data, tmp_path):
    e = Experiment.from_dict(experiment(data, algorithm={"name": "../../elsewhere/x:Y"}))
    assert RunDir.for_experiment(e, tmp_path).path.resolve().parent.parent == tmp_path.resolve()


def test_divergence_is_kept_and_told(data, tmp_path):
    e = Experiment.from_dict(experiment(data, algorithm={"name": "fedavg", "eta": 1e38}))
    place = RunDir(tmp_path / "run")
    with pytest.raises(Diverged, match="try a smaller eta"):
        execute(e, place)
    assert "non-finite" in place.failure()
    assert not place.finished()


def test_not_a_run_directory(tmp_path):
    with pytest.raises(FafedError, match=r"no experiment\.toml"):
        RunDir(tmp_path).experiment()


def test_busy_names_the_directory(tmp_path):
    with (
        RunDir(tmp_path).locked(),
        pytest.raises(Busy, match=str(tmp_path)),
        RunDir(tmp_path).locked(),
    ):
        pass


def test_an_error_while_runs_are_watched_ends_them(data, tmp_path):
    found = Experiment.read(write_experiment(tmp_path / "small.toml", data, rounds=10_000))

    def broken(places):
        if any(place.round() for place in places):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_all([found], tmp_path / "runs", 1, broken)
    wait_for(lambda: not multiprocessing.active_children())
    (place,) = all_runs(tmp_path / "runs")
    assert 0 < place.round() < 10_000
