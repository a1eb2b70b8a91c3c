"""Searches: whole, shared between workers, stopped and gone on with."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest
from small import experiment, write_data, write_experiment
from typer.testing import CliRunner

from fafed import ConfigError, FafedError
from fafed.cli import app
from fafed.core.records import Record
from fafed.experiments import tuning
from fafed.experiments.config import Experiment
from fafed.experiments.rundir import all_runs
from fafed.experiments.tuning import GRIDS, best, score, space, tune

GRID = {"fafed": {"eta": [0.01, 0.1], "alpha": [0.1, 0.9]}}


@pytest.fixture
def data(tmp_path):
    write_data(tmp_path / "data")
    return tmp_path / "data"


def record(number, train, **validation):
    return Record(number, 0, 0, 0, 0, 0, 0.0, 1, train, validation=validation)


def test_rules():
    records = [record(r, 10.0 - r) for r in range(1, 21)]
    assert score(records, "train_loss") == pytest.approx(-9.5)  # rounds 19 and 20
    records[-1] = dataclasses.replace(records[-1], train={"loss": 0.25})
    assert score(records, "train_loss") == 0.25
    records = [record(1, 1.0, loss=2.0, accuracy=0.5), record(2, 1.0)]
    assert score(records, "validation") == 0.5
    with pytest.raises(ConfigError, match=r"set data\.validation"):
        score([record(1, 1.0)], "validation")


def test_the_papers_grids():
    sizes = {name: len(list(values)) for name, values in GRIDS.items()}
    assert set(sizes) == {"fedavg", "scaffold", "stem", "fedadam", "fedams", "fafed"}
    e = Experiment.read("fashion-mnist-high")
    assert space(e, "fafed")["eta"] == [0.001, 0.01, 0.02, 0.05, 0.1]
    with pytest.raises(ConfigError, match=r"\[search.naive\]"):
        space(e, "naive")


def test_a_grid_with_two_workers_tries_every_point_once(data, tmp_path):
    e = Experiment.from_dict(experiment(data, search=GRID))
    study = tune(e, "fafed", tmp_path / "runs", jobs=2)
    points = sorted((t["params"]["eta"], t["params"]["alpha"]) for t in study.trials)
    assert points == [(0.01, 0.1), (0.01, 0.9), (0.1, 0.1), (0.1, 0.9)]
    values = {tuple(t["params"].values()): t["value"] for t in study.trials}
    chosen = best(study)
    assert values[tuple(chosen.values())] == min(values.values())
    assert "training loss" in study.rule
    again = tune(e, "fafed", tmp_path / "runs", jobs=2)  # nothing left to do
    assert again == study


@pytest.mark.slow
def test_killed_searches_go_on(data, tmp_path):
    toml = write_experiment(tmp_path / "small.toml", data, search=GRID, rounds=150)
    command = [sys.executable, "-m", "fafed", "tune", str(toml), "--algorithms", "fafed"]
    command += ["--runs", str(tmp_path / "runs"), "-j", "1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not any(p.round() > 5 for p in all_runs(tmp_path / "runs")):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(1.2)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    runs = [p for p in all_runs(tmp_path / "runs") if p.path.parent.parent.name == "tune-fafed"]
    assert len(runs) == 4
    assert all(p.finished() for p in runs)
    toml = Experiment.read(tmp_path / "runs" / "small" / "best.toml")
    assert set(toml.settings["fafed"]) == {"eta", "alpha"}
    assert toml.algorithm.options == toml.settings["fafed"]
    assert (tmp_path / "runs" / "small" / "tuning" / "report.html").is_file()


def test_tpe_pruning_and_validation(data, tmp_path):
    wanted = experiment(data, search=GRID, rounds=8, eval_every=1)
    e = Experiment.from_dict(wanted | {"data": {"folder": str(data), "validation": 0.2}})
    study = tune(
        e, "fafed", tmp_path, rule="validation", sampler="tpe", trials=6, prune=True, jobs=1
    )
    assert len(study.trials) == 6
    assert study.direction == "maximize"
    assert set(best(study)) == {"eta", "alpha"}


def test_a_trial_that_diverges_is_ranked_last(data, tmp_path):
    e = Experiment.from_dict(experiment(data, search={"fedavg": {"eta": [1e38, 0.1]}}))
    study = tune(e, "fedavg", tmp_path, jobs=1)
    assert len(study.trials) == 2
    assert best(study) == {"eta": 0.1}


def test_another_experiment_or_grid_is_another_study(data, tmp_path):
    grid = {"fedavg": {"eta": [0.01]}}
    short = tune(Experiment.from_dict(experiment(data, search=grid, rounds=1)), "fedavg", tmp_path)
    grid["fedavg"]["eta"].append(0.1)
    wider = tune(
        Experiment.from_dict(experiment(data, search=grid, rounds=4)), "fedavg", tmp_path, jobs=1
    )
    assert [t["params"]["eta"] for t in wider.trials] == [0.01, 0.1]
    assert short.trials[0]["value"] > wider.trials[0]["value"]


def test_of_a_text_the_loss_decides(data):
    text = Experiment.read("wikitext-2").changed(metrics=["accuracy"])
    assert tuning._validation_direction(text) == "minimize"
    assert tuning._validation_direction(Experiment.from_dict(experiment(data))) == "maximize"


def test_passwords_are_not_told(data, tmp_path):
    e = Experiment.from_dict(experiment(data, search=GRID))
    with pytest.raises(ConfigError) as error:
        tune(e, "fafed", tmp_path, storage="nosuch://me:secret@host/db")
    assert "nosuch://me:***@host/db" in str(error.value)
    assert "secret" not in str(error.value)


def test_a_database_that_cannot_be_opened(data, tmp_path):
    e = Experiment.from_dict(experiment(data, search=GRID))
    with pytest.raises(ConfigError, match="cannot be opened"):
        tune(e, "fafed", tmp_path, storage="sqlite:////nowhere/at/all/study.db")


def test_a_rule_without_its_data_is_refused_before_the_first_trial(data, tmp_path):
    e = Experiment.from_dict(experiment(data, search=GRID))
    with pytest.raises(ConfigError, match=r"the rule 'validation' needs held-out data"):
        tune(e, "fafed", tmp_path / "runs", rule="validation")
    assert not (tmp_path / "runs").exists()


def test_an_error_in_a_trial_is_told_without_a_traceback(data, tmp_path, capfd):
    e = Experiment.from_dict(experiment(data, search={"fedavg": {"eta": [-1.0]}}))
    with pytest.raises(FafedError, match="see above"):
        tune(e, "fedavg", tmp_path, jobs=1)
    told = capfd.readouterr().err
    assert told.startswith("fedavg, {'eta': -1.0}: FedAvg.eta must be a number > 0")
    assert "Traceback" not in told


def test_the_file_of_the_best_runs_what_was_tuned(data, tmp_path):
    """Also if the experiment's own algorithm was not among them."""
    wanted = experiment(data, rounds=1, algorithm={"name": "fedavg"}, search=GRID)
    toml = tmp_path / "small.toml"
    toml.write_text(Experiment.from_dict(wanted).to_toml())
    options = [
        "--algorithms",
        "fafed",
        "--trials",
        "1",
        "-j",
        "1",
        "--runs",
        str(tmp_path / "runs"),
    ]
    done = CliRunner().invoke(app, ["tune", str(toml), *options])
    assert done.exit_code == 0, done.output
    best_one = Experiment.read(tmp_path / "runs" / "small" / "best.toml")
    assert best_one.algorithm.name == "fafed"
    assert best_one.algorithm.options == {"eta": 0.01, "alpha": 0.1}
