"""Flower: real processes with TLS and SuperNode authentication, and the wire's rules without."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from silo_tools import final
from small import experiment, write_data, write_experiment

import fafed as fafed_package
from fafed.errors import ConfigError
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.explicit import explicit
from fafed.experiments.rundir import RunDir
from fafed.silos import messages
from fafed.silos.messages import EMPTY, ExchangeId, Message
from fafed.silos.transports.flower.export import export

pytest.importorskip("flwr", reason="needs Flower: pip install 'fafed[flower]'")

from flower_tools import Flower, lines
from flwr.app import ConfigRecord, Error, RecordDict
from flwr.app import Message as Letter
from flwr.supercore.task_identity import TaskIdentity

from fafed.silos.transports.flower import app

SILOS = ("north", "south")


def refused(flower: Flower) -> dict[str, str]:
    """Start a silo whose key nobody registered and one without a key; what they must hear."""
    flower.do(flower.typed("ssh-keygen", "stranger"))
    flower.start("stranger", flower.typed("flower-supernode", "stranger"))
    keyless = flower.typed("flower-supernode", "keyless")
    flower.start("keyless", keyless.replace("--auth-supernode-private-key keyless", ""))
    return {
        "stranger": "[code: 2004] Failed to activate SuperNode",
        "keyless": "[code: 2001] SuperNode authentication is enabled",
    }


def own_records(flower: Flower, data: Path) -> None:
    """Each silo has a folder of records that only its own file names."""
    sites = {}
    for i, name in enumerate(SILOS):
        own = flower.folder / f"records-{name}"
        own.mkdir()
        (data / f"client-{i}.npz").rename(own / "records.npz")
        sites[name] = f'folder = "kept-{name}"\nallow = ["softmax"]\n[data]\nfolder = "{own}"\n'
    (data / "test.npz").rename(flower.folder / "test.npz")
    flower.nodes(**sites)


@pytest.mark.slow
@pytest.mark.waits
def test_real_processes_give_the_numbers_of_the_loop_engine(tmp_path):
    """The guide's Flower section, followed with two silos. One whose key nobody registered, and one
    without a key, are refused. Two algorithms that keep something on the silos."""
    write_data(tmp_path / "data", 2, examples=200)
    settings = {"name": "hospitals", "rounds": 2, "engine": "loop"}
    settings |= {"batch_size": 32, "opening_batch_size": 64}  # what a silo takes by default
    settings |= {"wire": {"up": "int8"}}  # other tests send whole messages
    write_experiment(tmp_path / "hospitals.toml", tmp_path / "data", **settings)
    fafed = Experiment.read(tmp_path / "hospitals.toml")
    found = [fafed, fafed.with_algorithm("scaffold")]
    for one in found:
        execute(one, RunDir(tmp_path / one.algorithm.name))
    flower = Flower(tmp_path / "flower")
    (tmp_path / "hospitals.toml").rename(flower.folder / "hospitals.toml")
    try:
        flower.link()
        reasons = refused(flower)
        own_records(flower, tmp_path / "data")
        line = flower.typed("fafed export flower").replace("north,south,west", ",".join(SILOS))
        more = f"--measure {flower.folder / 'test.npz'} --algorithms fafed,scaffold"
        flower.do(f"{line} {more} --deadline 60")
        told = flower.do(flower.typed("flwr run"), seconds=300)
        assert told.count("round 2 of 2: 2 silos") == 2, told
        for name, reason in reasons.items():
            assert flower.processes[name].poll() not in (None, 0)
            assert reason in (flower.folder / f"{name}.log").read_text()
        link = (flower.folder / "superlink.log").read_text()
        assert "No SuperNode found with the given public key" in link
    finally:
        flower.stop()
    for one in found:
        place = RunDir.for_experiment(one, flower.folder / "runs")
        here, there = final(RunDir(tmp_path / one.algorithm.name)), final(place)
        torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-7)
        assert place.records()[-1].test["accuracy"] > 0
        wanted = fafed_package.load(place.path).state_dict()
        kept = explicit(one).digest[:12]  # silos keep what they were sent: all values
        for name in SILOS:
            (own,) = (flower.folder / f"kept-{name}" / "runs").glob(f"{kept}-*")
            got = fafed_package.load(own).state_dict()
            assert all(torch.equal(wanted[key], leaf) for key, leaf in got.items())
    the_audit_files_agree(flower, RunDir.for_experiment(fafed, flower.folder / "runs"))


def the_audit_files_agree(flower: Flower, place: RunDir) -> None:
    theirs = lines(place.path)
    for name in SILOS:
        own = lines(flower.folder / f"kept-{name}")
        sent = [x["sha256"] for x in own if x["direction"] == "sent" and x["run"] in _runs(theirs)]
        wanted = (name, "received")
        received = [x["sha256"] for x in theirs if (x["peer"], x["direction"]) == wanted]
        assert received == sent
        assert len(received) == 5  # hello, the opening, two rounds, the final model
        (kept,) = [one for run in _runs(theirs) for one in own if one["run"] == run][-1:]
        assert (kept["direction"], kept["kind"]) == ("sent", "kept")
        assert f"records-{name}" not in (place.path / "audit.jsonl").read_text()


def _runs(found: list[dict[str, object]]) -> set[object]:
    return {x["run"] for x in found}


@pytest.fixture
def at_work(monkeypatch):
    """Letters can only be written inside a Flower process."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def request(body: bytes = b"") -> Message:
    packed = EMPTY._replace(body=bytearray(body))
    return messages.write("hello", ExchangeId("r"), {}, packed)


class Grid:
    """SuperNodes that answer as told; a text stands for a mistake."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.names = list(answers)
        self.letters: dict[str, Letter] = {}

    def get_nodes(self):
        return [SimpleNamespace(name=n, node_id=i) for i, n in enumerate(self.names, start=2)]

    def push_messages(self, letters):
        (letter,) = letters
        letter.metadata.__dict__["_message_id"] = str(len(self.letters))
        self.letters[letter.metadata.message_id] = letter
        return [letter.metadata.message_id]

    def pull_messages(self, numbers):
        (number,) = numbers
        letter = self.letters[number]
        answer = self.answers[self.names[letter.metadata.dst_node_id - 2]]
        if answer == "silent":
            return []
        if answer == "error":
            return [Letter(Error(8, "secret"), reply_to=letter)]
        if answer == "nonsense":
            return [Letter(RecordDict({"head": ConfigRecord({"json": "no"})}), reply_to=letter)]
        return [Letter(app._content(answer.head, app._array(answer)), reply_to=letter)]


def test_the_wire_names_who_is_gone_and_passes_the_rest(at_work, caplog):
    good = Message(b"head", b"body")
    grid = Grid(a=good, b="error", c="nonsense", d="silent", e=Message(b"h", b"x" * 99))
    wire = app.Wire(grid)
    assert wire.present() == ["a", "b", "c", "d", "e"]
    asked = {name: request() for name in ("a", "b", "c", "d", "e", "unknown")}
    answers = dict(wire.ask(asked, 0.5, 50))
    empty = Message(b"", b"")
    assert answers == {"a": good, "b": None, "c": empty, "e": empty}
    assert "error 8 for 'b'" in caplog.text
    assert "'e' sent 100 bytes, more than 50" in caplog.text
    assert "secret" not in caplog.text


def test_a_silo_that_comes_late_is_asked_then(at_work):
    grid = Grid(a=Message(b"head", b""))
    grid.names = []
    found = iter(app.Wire(grid).ask({"a": request()}, 5, 50))
    grid_nodes, calls = grid.get_nodes, []

    def later():
        calls.append(1)
        grid.names = ["a"] if len(calls) > 2 else []
        return grid_nodes()

    grid.get_nodes = later
    assert next(found) == ("a", Message(b"head", b""))


def test_no_letter_can_be_guessed_by_another_silo(at_work):
    """An answer names its letter by a digest of it: whoever knows the digest could answer."""
    grid = Grid(a=Message(b"head", b""), b=Message(b"head", b""))
    asked = {name: request() for name in ("a", "b")}
    assert len(dict(app.Wire(grid).ask(asked, 5, 50))) == 2
    tokens = {str(letter.content["token"]["hex"]) for letter in grid.letters.values()}
    assert len(tokens) == 2
    assert {len(token) for token in tokens} == {32}


def test_a_silo_answers_the_superlink_alone(tmp_path, at_work, monkeypatch):
    file = tmp_path / "north.toml"
    file.write_text(f'folder = "{tmp_path}"\nallow = []\n[data]\nshare = true\n')
    monkeypatch.setattr(TaskIdentity, "_node_id", 5)  # another SuperNode writes the letter
    letter = Letter(app._content(request().head, app._array(request())), 7, "train")
    context = SimpleNamespace(node_config={"site": str(file)}, node_id=7, state={})
    head = json.loads(app._opened(app._answered(letter, context)).head)
    assert (head["kind"], head["facts"]) == ("failed", {"error": "Refused"})
    (line,) = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert (json.loads(line)["direction"], json.loads(line)["peer"]) == ("refused", "5")


def test_two_silos_of_one_name_are_an_error():
    grid = Grid(a="silent")
    grid.names = ["a", "a"]
    with pytest.raises(ConfigError, match="two SuperNodes are registered as 'a'"):
        app.Wire(grid).present()


@pytest.mark.parametrize("config", [{}, {"site": "/secret-ward/site.toml"}])
def test_a_silo_without_its_file_fails_and_tells_no_path(config, at_work):
    letter = Letter(app._content(request().head, app._array(request())), 7, "train")
    context = SimpleNamespace(node_config=config, node_id=7, state={})
    answer = app._opened(app._answered(letter, context))
    head = json.loads(answer.head)
    assert (head["kind"], head["facts"], head["run"]) == ("failed", {"error": "ConfigError"}, "r")
    assert b"secret-ward" not in answer.head


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"silos": ""}, "name each of them once"),
        ({"silos": "a,a"}, "name each of them once"),
        ({"silos": "a,,b"}, "name each of them once"),
        ({"min-silos": 3}, "between 1 and the 2 silos, got 3"),
        ({"min-silos": 1.5}, "must be a whole number, got 1.5"),
        ({"deadline": 0}, "deadline = 0"),
        ({"start": "soon"}, "start = 'soon'"),
    ],
)
def test_wrong_settings_fail_before_anything_is_sent(changes, match):
    good = {"silos": "a, b", "min-silos": 0, "deadline": 5, "start": 5.0}
    assert app.terms_of(good).min_silos == 2
    with pytest.raises(ConfigError, match=match):
        app.terms_of(good | changes)


def test_an_app_holds_the_experiments_and_imports(tmp_path):
    found = Experiment.from_dict(experiment(Path("data"), name="My_Trial"))
    several = [found, found.with_algorithm("fedavg")]
    export([*several, found.with_algorithm("mime")], tmp_path, SILOS)
    place = export(several, tmp_path, SILOS, min_silos=1, runs="/srv/runs")
    written = tomllib.loads((place / "pyproject.toml").read_text())
    assert written["project"]["name"] == "my-trial"
    assert app.terms_of(written["tool"]["flwr"]["app"]["config"]).silos == SILOS
    read = [Experiment.read(p) for p in sorted((place / "fafed_app" / "experiments").glob("*"))]
    assert [one.digest for one in read] == [one.digest for one in several]
    with pytest.raises(ConfigError, match="between 1 and the 2 silos, got 3"):
        export(several, tmp_path, SILOS, min_silos=3)
