"""`fafed privacy`: the plan of an experiment, and runs with a table [privacy]."""

from __future__ import annotations

import json

import pytest
from small import write_data, write_experiment
from typer.testing import CliRunner

from fafed import ConfigError, Privacy
from fafed.cli import app
from fafed.core.records import Record
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.progress import facts
from fafed.experiments.rundir import RunDir
from fafed.silos.limits import Refusal, refuse_client_level

NOISY = {"level": "example", "clip": 1.0, "delta": 1e-3}


def shown(*arguments):
    done = CliRunner().invoke(app, ["privacy", *map(str, arguments)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


@pytest.fixture
def small(tmp_path):
    write_data(tmp_path / "data", examples=60)
    return lambda **changes: write_experiment(tmp_path / "e.toml", tmp_path / "data", **changes)


def test_the_plan_of_an_experiment(small):
    path = small(privacy=NOISY | {"noise": 1.2, "max_epsilon": 5.0})
    plan = json.loads(shown(path, "--json"))
    assert plan["rounds"] == [1, 2, 3, 4, 5, 6]
    assert plan["epsilon"] == sorted(plan["epsilon"])
    assert max(plan["clients"]) == plan["epsilon"][-1]
    afforded = plan["affordable_rounds"]
    assert afforded == sum(e <= 5.0 for e in plan["epsilon"])
    text = shown(path)
    assert f"max_epsilon 5 allows {afforded} of 6 rounds" in text
    assert f"{plan['epsilon'][-1]:.3f}" in text


def test_the_plan_of_silos_needs_no_data(small):
    path = small(privacy=NOISY | {"noise": 1.2, "max_epsilon": 5.0})
    due = json.loads(shown(path, "--json"))
    assert json.loads(shown(path, "--json", "--examples", "60,60,60,60")) == due
    for file in (path.parent / "data").iterdir():
        file.unlink()
    found = json.loads(shown(path, "--json", "--examples", "60, 600"))
    assert found["clients"][0] == due["clients"][0] > found["clients"][1]
    with pytest.raises(ConfigError, match="must be whole numbers, for example 1200,800,950"):
        shown(path, "--examples", "60,none")
    with pytest.raises(ConfigError, match=r"promises nothing to a client with 20000000 examples"):
        shown(path, "--examples", "60,20000000")


def test_the_noise_for_an_epsilon(small):
    path = small(privacy=NOISY | {"noise": 9.0}, algorithm={"name": "fedavg", "eta": 0.1})
    path.write_text(path.read_text("utf-8").replace("noise = 9.0\n", ""), "utf-8")
    plan = json.loads(shown(path, "--epsilon", "3", "--json"))
    assert plan["epsilon"][-1] == pytest.approx(3.0, rel=0.01)
    assert plan["epsilon"][-1] <= 3.0


def test_the_plan_of_clients(small):
    noisy = {"level": "client", "noise": 2.0, "clip": 1.0, "delta": 1e-3}
    path = small(privacy=noisy, algorithm={"name": "fedavg", "eta": 0.1})
    plan = json.loads(shown(path, "--json"))
    assert plan["clients"] == [plan["epsilon"][-1]]
    text = shown(path)
    assert "add or remove one client" in text
    assert "epsilon after round" not in text


def test_an_experiment_without_noise_has_no_plan(small):
    with pytest.raises(ConfigError, match="has no noise"):
        shown(small())


def test_a_run_keeps_epsilon_in_its_records_and_stops_in_time(small, tmp_path):
    path = small(privacy=NOISY | {"noise": 1.2})
    plan = json.loads(shown(path, "--json"))
    limited = NOISY | {"noise": 1.2, "max_epsilon": plan["epsilon"][3], "secure": True}
    experiment = Experiment.read(small(privacy=limited, checkpoint_every=3))
    place = RunDir.for_experiment(experiment, tmp_path / "runs")
    execute(experiment, place)
    spent = [record.diagnostics["epsilon"] for record in place.records()]
    assert spent == pytest.approx(plan["epsilon"][:4])
    execute(experiment, place)  # nothing is left to do
    assert len(place.records()) == 4


def test_progress_says_what_is_spent_and_what_may_be():
    counts = dict.fromkeys(("steps", "gradients", "samples", "bytes_up", "bytes_down"), 0)
    last = Record(
        round=3, **counts, seconds=0.0, clients=2, train_loss=None, diagnostics={"epsilon": 1.834}
    )
    private = {"level": "example", "noise": 1.0, "clip": 1.0, "delta": 1e-5}
    for most, told in ((None, ""), (4.0, " of 4.00")):
        due = f"epsilon 1.83{told} at delta 1e-05 (worst client)"
        assert facts(last, Privacy(**private, max_epsilon=most)) == due
    assert facts(last) == "epsilon 1.83"


def test_tables_are_checked_and_belong_to_the_experiment(small):
    plain = Experiment.read(small())
    secure = Experiment.read(small(privacy={"secure": True}))
    assert plain.fingerprint != secure.fingerprint
    assert "[privacy]" in secure.to_toml()
    assert "privacy" not in plain.to_toml()
    with pytest.raises(ConfigError, match=r"privacy.sceure: no such setting"):
        small(privacy={"sceure": True})


def test_silos_refuse_a_table_that_would_do_nothing(small):
    refuse_client_level(Experiment.read(small(privacy={"secure": True})))
    refuse_client_level(Experiment.read(small(privacy=NOISY | {"noise": 1.2})))
    with pytest.raises(Refusal, match="works in simulation and on ranks, not over silos"):
        refuse_client_level(Experiment.read(small(privacy=NOISY | {"noise": 1, "level": "client"})))
