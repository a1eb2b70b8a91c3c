"""Silos measure the server's model on their own rows, and send what their files allow."""

from __future__ import annotations

import json
import math

import pytest
from silo_tools import final, local_federation, run
from small import experiment, write_data

from fafed.core.records import summary
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos import messages
from fafed.silos.messages import EMPTY, Message

SEND = {"send": ["loss", "accuracy"], "min_rows": 5}
LOOSE = {"min_batch_size": 1, "min_local_steps": 1, "min_rows": 1, "max_batch_share": 1.0}


def small(tmp_path, **changes):
    write_data(tmp_path / "data", 3, 30)
    content = experiment(tmp_path / "data", **{"rounds": 2, "engine": "loop"} | changes)
    content["data"] = {"folder": str(tmp_path / "data"), "client_test": 0.2}
    return Experiment.from_dict(content)


def federation(tmp_path, **changes):
    allow = ["softmax", str(tmp_path / "data")]
    return local_federation(tmp_path, **{"allow": allow, "evaluate": SEND} | changes)


def shown(place):
    return [record.to_dict() | {"seconds": 0} for record in place.records()]


def kinds(tmp_path, silo="a"):
    lines = (tmp_path / silo / "audit.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["direction"] == "sent"]


def test_the_numbers_are_those_of_the_simulation(tmp_path):
    found = small(tmp_path)
    here = RunDir(tmp_path / "simulated")
    execute(found, here)
    there = run(found, tmp_path, federation(tmp_path))
    assert shown(there) == shown(here)
    last = there.records()[-1]
    assert last.clients_test["accuracy"]["clients"] == 3
    told = [json.loads(line["numbers"]) for line in kinds(tmp_path) if line["kind"] == "measured"]
    assert [one["examples"] for one in told] == [6]  # eval_every is 2
    assert told[0]["numbers"]["loss"] == last.client_values["clients_test"]["loss"][0]


@pytest.mark.parametrize(
    "evaluate", [{}, {"share": 0.2}, {"send": ["recall"]}, {"send": ["loss"], "min_rows": 7}]
)
def test_nothing_leaves_unless_the_silo_says_so(tmp_path, evaluate):
    wire = federation(tmp_path, evaluate=evaluate)
    place = run(small(tmp_path), tmp_path, wire)
    assert place.records()[-1].clients_test == {}
    assert {line["kind"] for line in kinds(tmp_path)} == {"welcome", "answer"}
    worker = wire.workers["a"]
    (name,) = worker.parts
    asked = messages.write("measure", messages.ExchangeId(name, 1), {}, EMPTY)
    answer = messages.glance(worker.handle(asked).head)
    assert answer["kind"] == "refused"
    assert "sends no evaluation" in answer["facts"]["why"]


def test_each_silo_sends_what_it_chooses(tmp_path):
    wire = federation(tmp_path)
    sites = {name: worker.site for name, worker in wire.workers.items()}
    for name, send in {"a": ["loss"], "b": [], "c": ["loss", "accuracy"]}.items():
        own = sites[name].evaluate.model_copy(update={"send": send})
        wire.workers[name].site = sites[name].model_copy(update={"evaluate": own})
    last = run(small(tmp_path), tmp_path, wire).records()[-1]
    assert last.clients_test["loss"]["clients"] == 2
    assert last.clients_test["accuracy"]["clients"] == 1
    values = last.client_values["clients_test"]
    assert [math.isnan(v) for v in values["loss"]] == [False, True, False]
    assert [math.isnan(v) for v in values["accuracy"]] == [True, True, False]
    expected = summary(values["loss"], [6, 0, 6], higher=False)
    assert last.clients_test["loss"] == expected


def spoilt(**facts):
    def spoil(silo, answer):
        head = json.loads(answer.head)
        if silo != "b" or head["kind"] != "measured":
            return answer
        return Message(json.dumps(head | {"facts": head["facts"] | facts}).encode(), answer.body)

    return spoil


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"numbers": {"loss": 1.0}}, "expected ['loss', 'accuracy']"),
        ({"numbers": {"loss": "x", "accuracy": 1.0}}, "loss is 'x', it must be a number"),
        ({"examples": 0}, "examples is 0"),
        ({"examples": 10**6}, "it claims 1000000 examples"),
    ],
)
def test_wrong_numbers_are_left_out_and_the_run_goes_on(tmp_path, caplog, facts, words):
    wire = federation(tmp_path)
    wire.spoil = spoilt(**facts)
    last = run(small(tmp_path), tmp_path, wire).records()[-1]
    assert last.clients_test["loss"]["clients"] == 2
    assert last.clients == 3
    assert words in caplog.text


def test_a_silo_with_its_own_rows_holds_out_its_own_share(tmp_path):
    found = small(tmp_path)
    sites = {}
    for i, name in enumerate("abc"):
        folder = tmp_path / f"site-{name}"
        folder.mkdir()
        (folder / "own.npz").write_bytes((tmp_path / "data" / f"client-{i}.npz").read_bytes())
        sites[name] = folder
    plain, own = (
        local_federation(
            tmp_path / kind, allow=["softmax"], limits=LOOSE, evaluate=SEND | {"share": share}
        )
        for kind, share in (("plain", 0.0), ("own", 0.5))
    )
    rows = {}
    for kind, wire in (("plain", plain), ("own", own)):
        for name, worker in wire.workers.items():
            data = worker.site.data.model_copy(update={"folder": str(sites[name]), "share": False})
            worker.site = worker.site.model_copy(update={"data": data})
        place = run(found, tmp_path / kind, wire)
        assert place.records()[-1].clients_test["loss"]["clients"] == 3
        (part,) = wire.workers["a"].parts.values()
        rows[kind] = (part.source.examples[0], part.test_rows)
        assert json.loads((tmp_path / kind / "a" / "budget.json").read_text())["visits"] > 1
    assert rows == {"plain": (24, 6), "own": (15, 15)}
    here = RunDir(tmp_path / "simulated")
    execute(found, here)
    assert final(here).equal(final(RunDir(tmp_path / "plain" / "run")))
    assert here.records()[-1].clients_test == (
        RunDir(tmp_path / "plain" / "run").records()[-1].clients_test
    )
