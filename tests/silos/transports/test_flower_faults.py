"""What real silos do to a run, on Flower, with real processes: one federation and one experiment
that goes through it all and must end with the numbers of a simulation to which the same happened.
What needs no process is in test_silos_faults.py and test_flower.py."""

from __future__ import annotations

import logging
import shutil
import threading
from types import SimpleNamespace

import pytest
import torch
from silo_tools import final, simulated
from small import write_data, write_experiment

from fafed.experiments.config import Experiment
from fafed.experiments.rundir import RunDir

pytest.importorskip("flwr", reason="needs Flower: pip install 'fafed[flower]'")

from flower_tools import Flower, answered, lines, wait
from flwr.supercore.task_identity import TaskIdentity

from fafed.silos.serve import serve
from fafed.silos.server import FederationConfig
from fafed.silos.transports.flower import app

SILOS = ("north", "south", "west")


class Trial:
    """Five rounds of FAFED over three silos that obey the test's orders."""

    def __init__(self, folder):
        data, file = folder / "data", folder / "flower" / "hospitals.toml"
        self.flower = Flower(folder / "flower")
        write_data(data, len(SILOS))
        model = {"name": "flower_silo:Obedient", "inputs": 6, "outputs": 3}
        write_experiment(file, data, name="hospitals", rounds=5, engine="loop", model=model)
        self.found = Experiment.read(file)
        self.place = RunDir.for_experiment(self.found, folder / "flower" / "runs")
        allow = f'allow = ["flower_silo:Obedient", "{data}"]\n[data]\nshare = true\n'
        self.sites = {name: f'folder = "kept-{name}"\n{allow}' for name in SILOS}

    def begin(self):
        self.flower.link()
        self.flower.nodes(**self.sites)
        self.flower.do(self.flower.typed("fafed export flower"))

    def run(self, config: str, code: int | None = None) -> str:
        line = f"{self.flower.typed('flwr run')} --run-config '{config}'"
        return self.flower.do(line, seconds=600, code=code)

    def order(self, **orders: str) -> None:
        """What each silo must do from now on; those that are not named behave."""
        for silo in SILOS:
            (self.flower.orders / silo).unlink(missing_ok=True)
        for silo, what in orders.items():
            (self.flower.orders / silo).write_text(what)

    def asked(self, round: int, *silos: str) -> None:
        """Wait for a round to begin, and for these silos to be at work in it."""
        wait(self.place.path, round=round, direction="sent")
        for silo in silos:
            wait(self.flower.folder / f"kept-{silo}", round=round, direction="received")

    def kill_client_app(self, silo: str) -> None:
        """SIGKILL for the process that computes the answer; its SuperNode lives on."""
        (process,) = self.flower.client_apps(silo)
        process.kill()

    def log(self) -> str:
        return (self.place.path / "log.txt").read_text()


def too_few_answer(trial):
    """The run stops at its deadline, below min-silos, and says why."""
    told = []
    run = threading.Thread(target=lambda: told.append(trial.run("min-silos=3 deadline=8.0")))
    run.start()
    trial.asked(1)
    trial.order(south="sleep")
    run.join()
    assert "of 3 silos, and the run must have 3 (min_silos): bring them back" in told[0], told[0]
    assert "silo 'south' did not answer within 8 s; left out" in trial.log()
    trial.order()


def go_bad_then_dark(trial):
    """Answers with a wrong shape, a wrong round and a NaN are refused. Then a silo never answers
    while another's ClientApp is killed, and the round ends with those who are left. Then a silo,
    the SuperLink and the ServerApp are killed in a round, and another silo's disk is gone."""
    run = threading.Thread(target=trial.run, args=("min-silos=1 deadline=80.0",))
    run.start()
    trial.asked(2)
    trial.order(south="shape", west="round")
    trial.asked(3)
    trial.order(south="nan")
    trial.asked(4)
    trial.order(south="sleep", west="sleep")
    trial.asked(4, "south", "west")
    trial.kill_client_app("west")
    trial.asked(5)
    for words in (
        "round 2: refused a message of 'south': 0.x has the shape",
        "round 2: refused a message of 'west': round is 3, expected 2",
        "round 3: refused a message of 'south': 0.x holds NaN",
        "round 4: silo 'south' did not answer within 80 s; left out",
        "round 4: silo 'west' is gone; left out",
    ):
        assert words in trial.log(), trial.log()
    trial.order()
    wait(trial.flower.folder / "kept-south", round=4, direction="sent")  # too late
    trial.order(south="sleep")
    trial.asked(5, "south")
    wait(trial.place.path, round=5, direction="received", peer="north")
    trial.flower.kill("south", "superlink")
    run.join()
    trial.order()
    shutil.rmtree(trial.flower.folder / "kept-north")


@pytest.mark.hosted
def test_a_run_survives_what_real_silos_do_to_it(tmp_path):
    trial = Trial(tmp_path)
    flower = trial.flower
    try:
        trial.begin()
        too_few_answer(trial)
        go_bad_then_dark(trial)
        flower.up()
        flower.again("south")
        told = trial.run("min-silos=1 deadline=90.0", code=0)
    finally:
        flower.stop()
    assert "round 5 of 5: 3 silos" in told, told
    assert [r.round for r in trial.place.records()] == [1, 2, 3, 4, 5]
    who = {1: (0, 1, 2), 2: (0,), 3: (0, 2), 4: (0,), 5: (0, 1, 2)}
    assert answered(trial.place, SILOS) == who
    assert "silo 'north' has lost its state of the run; it joins as a new one" in trial.log()
    assert "starts its estimate again from zero" in trial.log()
    absent = {round: set(range(3)) - set(there) for round, there in who.items()}
    expected = simulated(trial.found, absent, {5: 0})
    torch.testing.assert_close(final(trial.place), expected, rtol=1e-6, atol=1e-7)


class Grid:
    """Carries letters within this process; each is answered by a worker that knows nothing."""

    def __init__(self, folder):
        self.folder = folder
        self.replies = {}

    def get_nodes(self):
        return [SimpleNamespace(name=n, node_id=i) for i, n in enumerate(SILOS, start=2)]

    def push_messages(self, letters):
        (letter,) = letters
        number = str(len(self.replies))
        letter.metadata.__dict__["_message_id"] = number
        node = letter.metadata.dst_node_id
        site = str(self.folder / f"{SILOS[node - 2]}.toml")
        context = SimpleNamespace(node_config={"site": site}, node_id=node, state={})
        self.replies[number] = app._answered(letter, context)
        return [number]

    def pull_messages(self, numbers):
        return [self.replies[number] for number in numbers]


def test_a_disk_that_is_wiped_in_a_running_job_joins_anew(tmp_path, monkeypatch, caplog):
    """The next process there has never heard of the run."""
    for name in ("_run_id", "_task_id", "_node_id"):  # else letters cannot be written here
        monkeypatch.setattr(TaskIdentity, name, 1)
    trial = Trial(tmp_path)
    for name, site in trial.sites.items():
        (tmp_path / f"{name}.toml").write_text(site)

    def on_record(record):
        if record.round == 2:
            shutil.rmtree(tmp_path / "kept-south")

    wire = app.Wire(Grid(tmp_path))
    with caplog.at_level(logging.WARNING):
        serve(trial.found, trial.place, wire, FederationConfig(SILOS, 2), on_record=on_record)
    assert "silo 'south' has lost its state of the run; it joins as a new one" in caplog.text
    expected = simulated(trial.found, {}, {3: 1})
    torch.testing.assert_close(final(trial.place), expected, rtol=1e-6, atol=1e-7)
    told = [(x["kind"], x["direction"]) for x in lines(tmp_path / "kept-south")]
    assert told[:3] == [("hello", "received"), ("visit", "received"), ("lost", "sent")]
