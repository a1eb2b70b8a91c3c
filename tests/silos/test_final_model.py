"""The final model of a run reaches every silo that wants it, once."""

from __future__ import annotations

import json
import stat

import pytest
import torch
from silo_tools import NAMES, local_federation, run
from small import experiment, write_data

import fafed
from fafed.experiments import model_file
from fafed.experiments.config import Experiment
from fafed.experiments.explicit import explicit
from fafed.experiments.rundir import RunDir
from fafed.silos import final_model, messages
from fafed.silos.messages import ExchangeId
from fafed.silos.worker import Worker


def small(tmp_path, **changes):
    write_data(tmp_path / "data", 3)
    settings = {"rounds": 2, "algorithm": {"name": "fedavg", "eta": 0.05}, "engine": "loop"}
    return Experiment.from_dict(experiment(tmp_path / "data") | settings | changes)


def federation(tmp_path, **changes):
    allow = ["softmax", "own_models:Tied", "modules:Assigned", str(tmp_path / "data")]
    return local_federation(tmp_path, allow=allow, **changes)


def folder(tmp_path, name):
    """The silo's folder of the run."""
    (found,) = (tmp_path / name / "runs").iterdir()
    return found


def audit(path):
    return [json.loads(line) for line in (path / "audit.jsonl").read_text().splitlines()]


def final(worker, request, **changes):
    """A final message like the run's, changed; the silo's answer."""
    head = json.loads(request.head) | changes
    answer = worker.handle(request._replace(head=json.dumps(head).encode()))
    found = json.loads(answer.head)
    return found["kind"], found["facts"].get("why", "")


def recorded(wire):
    """The requests that a wire carries, of each kind."""
    seen, ask = {}, wire.ask

    def spy(requests, *rest):
        for request in requests.values():
            head = json.loads(request.head)
            seen[head["kind"]] = messages.Message(request.head, bytes(request.body))
        return ask(requests, *rest)

    wire.ask = spy
    return seen


@pytest.mark.parametrize("model", ["own_models:Tied", "modules:Assigned"])
def test_every_silo_ends_with_the_model_of_the_run(model, tmp_path):
    place = run(small(tmp_path, model={"name": model}), tmp_path, federation(tmp_path))
    ours = model_file.read(place.path / "model.safetensors")
    for name in NAMES:
        own = folder(tmp_path, name)
        theirs = model_file.read(own / "model.safetensors")
        kept = Experiment.read(own / "experiment.toml")
        assert kept == explicit(place.experiment())  # with all its values
        assert (theirs.facts["digest"], theirs.facts["round"]) == (kept.digest, 2)
        assert set(ours.tensors) == set(theirs.tensors)
        assert all(torch.equal(ours.tensors[n], leaf) for n, leaf in theirs.tensors.items())
        module = fafed.load(own)
        assert not module.training
        for file in ("model.safetensors", "experiment.toml", "final.json"):
            assert stat.S_IMODE((own / file).stat().st_mode) == 0o600


def test_both_audit_files_have_the_final_model(tmp_path):
    place = run(small(tmp_path), tmp_path, federation(tmp_path))
    theirs = [line for line in audit(place.path) if line["kind"] in ("final", "kept")]
    assert [(line["direction"], line["kind"]) for line in theirs] == [
        *[("sent", "final")] * 3,
        *[("received", "kept")] * 3,
    ]
    for name in NAMES:
        *_, received, sent = audit(tmp_path / name)
        assert (received["direction"], received["kind"]) == ("received", "final")
        assert (sent["direction"], sent["kind"]) == ("sent", "kept")
        assert received["sha256"] == theirs[0]["sha256"]
        assert received["round"] == 2


def test_a_silo_may_refuse_it(tmp_path, caplog):
    wire = federation(tmp_path, model={"keep": False})
    for name in NAMES[1:]:
        site = wire.workers[name].site
        wire.workers[name] = Worker(name, site.model_copy(update={"model": type(site.model)()}))
    place = run(small(tmp_path), tmp_path, wire)
    assert place.finished()
    assert not (folder(tmp_path, "a") / "model.safetensors").exists()
    assert (folder(tmp_path, "b") / "model.safetensors").exists()
    assert "'a' does not keep the final model: this silo does not want the model" in caplog.text
    assert "these silos do not have the final model: a. " in (place.path / "log.txt").read_text()


@pytest.mark.parametrize("how", ["absent", "silent", "spoilt"])
def test_a_silo_that_is_lost_at_the_end_does_not_spoil_the_run(how, tmp_path, caplog):
    wire = federation(tmp_path)
    present = wire.present

    def leave():
        here = present()
        if (tmp_path / "run" / "model.safetensors").exists():
            if how == "spoilt":
                wire.spoil = lambda silo, answer: answer._replace(head=b"no")
            else:
                getattr(wire, how).add("b")
        return here

    wire.present = leave
    place = run(small(tmp_path), tmp_path, wire)
    assert place.finished()
    without = "a, b, c" if how == "spoilt" else "b"
    assert f"these silos do not have the final model: {without}. " in caplog.text
    assert (folder(tmp_path, "a") / "model.safetensors").exists()


def test_a_silo_takes_one_final_model_and_only_a_true_one(tmp_path):
    found, wire = small(tmp_path), federation(tmp_path)
    seen = recorded(wire)
    run(found, tmp_path, wire)
    worker, request = wire.workers["a"], seen["final"]
    file = folder(tmp_path, "a") / "model.safetensors"
    before = file.stat().st_mtime_ns
    assert final(worker, request, attempt="again") == ("kept", "")  # its answer may be lost
    assert file.stat().st_mtime_ns == before
    x = torch.zeros(21)
    other = messages.pack((x, ()))
    place = ExchangeId.from_head(messages.glance(request.head))
    kind, why = final(worker, messages.write("final", place, {}, other))
    assert kind == "refused"
    assert "has the final model of the run already, of round 2" in why
    wrong = {
        "ends with round 2": {"round": 1},
        "exchange 1: the run ends": {"exchange": 1},
        "must be told hello first": {"run": "another"},
    }
    for words, changes in wrong.items():
        kind, why = final(worker, request, **changes)
        assert kind == "refused"
        assert words in why
    for words, tensors in {
        "has the shape [20], expected [21]": (torch.zeros(20), ()),
        "which nobody asked for": (x, (x,)),
        "NaN or infinity": (x / 0, ()),
        "has the type 'float64'": (x.double(), ()),
    }.items():
        kind, why = final(worker, messages.write("final", place, {}, messages.pack(tensors)))
        assert kind == "refused"
        assert words in why
    assert file.stat().st_mtime_ns == before


def test_a_silo_whose_process_is_new_keeps_it_too(tmp_path):
    """What Flower does: only the disk remembers the run."""
    found, wire = small(tmp_path), federation(tmp_path)
    seen = recorded(wire)
    run(found, tmp_path, wire)
    own = folder(tmp_path, "a")
    for name in ("model.safetensors", "final.json"):
        (own / name).unlink()
    worker = Worker("a", wire.workers["a"].site)
    assert final(worker, seen["final"]) == ("kept", "")
    fafed.load(own)


def test_rounds_that_are_added_bring_a_newer_model(tmp_path):
    found, wire = small(tmp_path), federation(tmp_path)
    run(found, tmp_path, wire)
    run(found.changed(rounds=3), tmp_path, wire)
    for name in NAMES:
        own = folder(tmp_path, name)
        assert model_file.read(own / "model.safetensors").facts["round"] == 3
        fafed.load(own)


def test_a_server_that_dies_at_the_end_hands_it_out_later(tmp_path, monkeypatch):
    """Between its last checkpoint and the model: `fafed silos run` again brings it."""
    found, wire = small(tmp_path), federation(tmp_path)

    def die(*args):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(final_model, "hand_out", die)
        with pytest.raises(SystemExit):
            run(found, tmp_path, wire)
    place = RunDir(tmp_path / "run")
    assert place.finished()
    assert final_model.owed(place, NAMES)
    wire.absent = {"c"}
    run(found, tmp_path, wire)
    assert (folder(tmp_path, "a") / "model.safetensors").exists()
    assert final_model.owed(place, NAMES)  # one was absent
    wire.absent = set()
    records = place.records()
    run(found, tmp_path, wire)
    assert not final_model.owed(place, NAMES)
    assert (folder(tmp_path, "c") / "model.safetensors").exists()
    assert place.records() == records
    wire.absent = set(NAMES)
    run(found, tmp_path, wire)  # finished all the same
