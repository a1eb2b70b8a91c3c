"""Silos that fail, lie or forget: the rules, without the processes."""

from __future__ import annotations

import json
import logging
import shutil
import sys

import numpy as np
import pytest
import torch
from silo_tools import final, local_federation, run, simulated
from small import experiment, write_data

from fafed.errors import FAULTS, ConfigError
from fafed.experiments import checkpoint
from fafed.experiments.assemble import prepare
from fafed.experiments.config import Experiment
from fafed.experiments.rundir import RunDir
from fafed.silos.limits import Limits
from fafed.silos.messages import Message
from fafed.silos.serve import serve
from fafed.silos.server import FederationConfig, TooFew, Unfit
from fafed.silos.worker import Worker
from fafed.training.loop import Absent, Diverged

LOOSE = Limits(min_batch_size=1, min_local_steps=1, min_rows=1, max_batch_share=1.0)


def small(tmp_path, name="fafed", **changes):
    write_data(tmp_path / "data", 3)
    settings = {"rounds": 5, "algorithm": {"name": name}, "engine": "loop", "eval_every": 9}
    return Experiment.from_dict(experiment(tmp_path / "data", **(settings | changes)))


def silos(tmp_path, **changes):
    return local_federation(tmp_path, allow=["softmax", str(tmp_path / "data")], **changes)


@pytest.mark.parametrize("name", ["fafed", "stem", "fedavg", "mime", "fedglomo", "naive"])
def test_a_silent_silo_is_a_failing_client(name, tmp_path):
    """Its state has moved on, since it did answer: it rolls back."""
    found = small(tmp_path, name)
    wire = silos(tmp_path)

    def on_record(record):
        wire.silent = {"b"} if record.round in (1, 3) else set()

    place = run(found, tmp_path, wire, on_record)
    assert [r.clients for r in place.records()] == [3, 2, 3, 2, 3]
    assert torch.equal(final(place), simulated(found, {2: {1}, 4: {1}}))


@pytest.mark.parametrize("name", ["fafed", "mime"])
def test_who_is_lost_between_two_exchanges_has_not_taken_part(name, tmp_path):
    """FAFED's first round and each of Mime's have two."""
    found = small(tmp_path, name)
    wire = silos(tmp_path)
    calls = []

    def spoil(silo, answer):
        head = json.loads(answer.head)
        if silo == "b" and head["round"] == 1 and head["exchange"] == 1:
            calls.append(silo)
            wire.silent = {"b"}
            return Message(b"", b"")
        return answer

    wire.spoil = spoil
    place = run(found, tmp_path, wire, lambda record: wire.silent.clear())
    assert calls
    assert [r.clients for r in place.records()] == [2, 3, 3, 3, 3]
    assert torch.equal(final(place), simulated(found, {1: {1}}))


@pytest.mark.parametrize("damage", ["wiped", "damaged"])
def test_a_silo_that_lost_its_state_joins_anew(damage, tmp_path, caplog):
    found = small(tmp_path)
    wire = silos(tmp_path)

    def on_record(record):
        if record.round == 2:
            if damage == "wiped":
                shutil.rmtree(tmp_path / "c" / "runs")
                wire.workers["c"] = Worker("c", wire.workers["c"].site)
                for path in (tmp_path / "a").rglob("plan.json"):  # a new hello brings it
                    there = tmp_path / "c" / path.relative_to(tmp_path / "a")
                    there.parent.mkdir(parents=True)
                    there.write_text(path.read_text().replace('"client": 0', '"client": 2'))
            else:
                for path in (tmp_path / "c").rglob("*.state"):
                    path.write_bytes(path.read_bytes()[:-1] + b"?")

    with caplog.at_level(logging.WARNING):
        place = run(found, tmp_path, wire, on_record)
    assert "silo 'c' has lost its state of the run; it joins as a new one" in caplog.text
    assert "starts its estimate again from zero" in caplog.text
    assert [r.clients for r in place.records()] == [3] * 5
    assert torch.equal(final(place), simulated(found, {}, {3: 2}))


@pytest.mark.parametrize("when", ["in a round", "before its checkpoint"])
def test_the_server_goes_on_after_the_last_finished_round(when, tmp_path):
    found = small(tmp_path)
    wire = silos(tmp_path)

    def die(silo, answer):
        if silo == "a" and json.loads(answer.head)["round"] == 3:
            raise SystemExit
        return answer

    def die_later(record):
        if record.round == 3:
            for path in checkpoint.found(tmp_path / "run" / "checkpoints")[:1]:
                path.unlink()
            raise SystemExit

    if when == "in a round":
        wire.spoil = die
    with pytest.raises(SystemExit):
        run(found, tmp_path, wire, die_later)
    wire.spoil = lambda silo, answer: answer
    place = run(found, tmp_path, wire)
    assert [r.round for r in place.records()] == [1, 2, 3, 4, 5]
    assert torch.equal(final(place), simulated(found, {}))
    assert place.records()[-1].samples == prepared_samples(found)


def prepared_samples(found):
    *_, last = prepare(found).run
    return last.samples


def test_below_min_silos_the_run_stops_and_goes_on_later(tmp_path):
    found = small(tmp_path)
    wire = silos(tmp_path)

    def on_record(record):
        if record.round == 2:
            wire.absent = {"a", "b"}

    with pytest.raises(TooFew, match=r"round 3: 1 of 3 silos.*must have 2"):
        run(found, tmp_path, wire, on_record, min_silos=2)
    wire.absent = set()
    place = run(found, tmp_path, wire, min_silos=2)
    assert torch.equal(final(place), simulated(found, {}))


def test_a_run_begins_with_all_silos(tmp_path):
    wire = silos(tmp_path)
    wire.absent = {"c"}
    with pytest.raises(TooFew, match=r"\['c'\] do not, and a run begins with all of them"):
        run(small(tmp_path), tmp_path, wire)


def test_an_algorithm_that_needs_everyone_waits(tmp_path):
    found = small(tmp_path, "scaffold")
    wire = silos(tmp_path)

    def on_record(record):
        wire.silent = {"b"} if record.round == 2 else set()

    with pytest.raises(Absent, match=r"SCAFFOLD needs every client.*\[1\].*wire='full'"):
        run(found, tmp_path, wire, on_record)
    wire.silent = set()
    place = run(found, tmp_path, wire)
    assert torch.equal(final(place), simulated(found, {}))


def test_a_run_goes_on_without_a_silo_that_has_left_for_good(tmp_path):
    found = small(tmp_path)
    wire = silos(tmp_path)

    def all_leave(record):
        if record.round == 2:
            wire.absent = {"a", "b", "c"}

    with pytest.raises(TooFew, match="round 3: 0 of 3 silos"):
        run(found, tmp_path, wire, all_leave, min_silos=2)
    wire.absent = {"b"}
    place = run(found, tmp_path, wire, min_silos=2)
    assert [record.clients for record in place.records()] == [3, 3, 2, 2, 2]
    assert torch.equal(final(place), simulated(found, {r: {1} for r in (3, 4, 5)}))


def test_without_a_silo_that_it_needs_a_run_ends_with_its_name(tmp_path):
    found = small(tmp_path, "scaffold")
    wire = silos(tmp_path)

    def one_leaves(record):
        if record.round == 2:
            wire.absent = {"b"}

    for on_record in (one_leaves, None):  # in the middle, and when it is started again
        with pytest.raises(Absent, match=r"round 3: SCAFFOLD needs every silo .* b is not there"):
            run(found, tmp_path, wire, on_record, min_silos=2)
    del wire.workers["b"]  # out of --silos, too
    with pytest.raises(ConfigError, match=r"begun with the silos .* a smaller --min-silos goes on"):
        run(found, tmp_path, wire, min_silos=2)


def test_a_lost_state_that_cannot_be_done_without_stops_the_run(tmp_path):
    found = small(tmp_path, "scaffold")
    wire = silos(tmp_path)

    def on_record(record):
        for path in (tmp_path / "b").rglob("*.state"):
            path.unlink()

    with pytest.raises(Absent, match=r"\[1\] have lost.*restore it from a backup"):
        run(found, tmp_path, wire, on_record)


def test_refused_messages_are_left_out_and_named(tmp_path, caplog):
    found = small(tmp_path)
    wire = silos(tmp_path)
    old = {}

    def spoil(silo, answer):
        head = json.loads(answer.head)
        if silo != "c" or head["round"] == 0:
            return answer
        old[head["round"]] = answer
        if head["round"] == 2:
            return Message(answer.head, answer.body[:-4])
        if head["round"] == 3:
            return old[2]
        if head["round"] == 4:
            return Message(b"x" * 2**21, b"")
        return answer

    wire.spoil = spoil
    with caplog.at_level(logging.WARNING):
        place = run(found, tmp_path, wire)
    assert [r.clients for r in place.records()] == [3, 2, 2, 2, 3]
    for words in ("round 2: refused a message of 'c'", "round is 2, expected 3"):
        assert words in caplog.text
    lines = [json.loads(x) for x in (place.path / "audit.jsonl").read_text().splitlines()]
    assert [x["peer"] for x in lines if x["direction"] == "refused"] == ["c"] * 3
    assert torch.equal(final(place), simulated(found, {r: {2} for r in (2, 3, 4)}))


def test_divergence_is_reported_as_in_simulation(tmp_path):
    found = small(tmp_path, algorithm={"name": "fedavg", "eta": 3e38})
    with pytest.raises(Diverged) as here:
        list(prepare(found).run)
    with pytest.raises(Diverged) as there:
        run(found, tmp_path, silos(tmp_path))
    assert str(here.value) == str(there.value)


def test_a_silo_refuses_code_that_is_not_on_its_list(tmp_path, caplog):
    wire = local_federation(tmp_path, allow=["mlp"])
    with caplog.at_level(logging.WARNING), pytest.raises(TooFew):
        run(small(tmp_path), tmp_path, wire)
    assert "model 'softmax' is not on this silo's allow-list" in caplog.text


def test_an_algorithm_that_is_not_on_the_list_is_not_even_imported(tmp_path, caplog, monkeypatch):
    """The server has it; a silo's own list decides."""
    (tmp_path / "elsewhere.py").write_text("from fafed import FedAvg as Own\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = small(tmp_path, algorithm={"name": "elsewhere:Own", "eta": 0.1})
    wire, imported = silos(tmp_path), []

    def watched(handle):
        def found(request):
            sys.modules.pop("elsewhere", None)  # the server's, in this process
            answer = handle(request)
            imported.append("elsewhere" in sys.modules)
            return answer

        return found

    for worker in wire.workers.values():
        worker.handle = watched(worker.handle)
    with caplog.at_level(logging.WARNING), pytest.raises(TooFew):
        run(found, tmp_path, wire)
    assert "algorithm 'elsewhere:Own' is not on this silo's allow-list" in caplog.text
    assert imported
    assert not any(imported)

    own = ["softmax", str(tmp_path / "data"), "elsewhere:Own"]
    run(found, tmp_path, local_federation(tmp_path, allow=own))


def test_what_goes_wrong_on_a_silo_stays_there(tmp_path, caplog):
    """An error's text may name paths; the server hears only its kind."""
    found = small(tmp_path)
    wire = silos(tmp_path)
    own = tmp_path / "secret-ward" / "records.npz"
    site = wire.workers["b"].site.model_copy(
        update={
            "data": wire.workers["b"].site.data.model_copy(
                update={"share": False, "folder": str(own)}
            )
        }
    )
    wire.workers["b"] = Worker("b", site)
    answers = []
    wire.spoil = lambda silo, answer: answers.append(answer) or answer
    with pytest.raises(TooFew):
        run(found, tmp_path, wire)
    heads = [json.loads(answer.head) for answer in answers]
    assert [h["facts"] for h in heads if h["kind"] == "failed"] == [{"error": "DataError"}]
    assert not any(b"secret-ward" in answer.head + answer.body for answer in answers)
    assert "secret-ward" in (tmp_path / "b" / "log.txt").read_text()


def test_a_simulated_run_is_not_continued_over_silos(tmp_path):
    from fafed.experiments.execute import execute

    found = small(tmp_path, rounds=1)
    execute(found, RunDir(tmp_path / "run"))
    with pytest.raises(ConfigError, match="begun on the engine 'loop'"):
        run(found, tmp_path, silos(tmp_path))


def test_a_file_to_measure_on_that_does_not_fit_is_told_before_the_first_round(tmp_path):
    found, wire = small(tmp_path), silos(tmp_path)
    file = tmp_path / "other.npz"
    np.savez(file, inputs=np.zeros((2, 7), np.float32), targets=np.zeros(2, np.int64))
    place = RunDir(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"cannot be measured on .*other\.npz"):
        serve(
            found,
            place,
            wire,
            FederationConfig.with_defaults(list(wire.workers)),
            measure=str(file),
        )
    assert not place.records()


def spoil(path, how):
    """A data file as a silo may have it by mistake."""
    x, y = np.zeros((80, 6), np.float32), np.arange(80) % 3
    match how:
        case "empty":
            x, y = x[:0], y[:0]
        case "not finite":
            x[3, 3] = np.nan
        case "inputs":
            x = x[:, :5]
        case "labels":
            y = y + 1
        case "arrays":
            y = np.array(["no", "yes"] * 40)
    np.savez(path, inputs=x, targets=y)
    if how == "unreadable":
        path.write_bytes(b"not a file of arrays")


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("how", ["empty", "not finite", "inputs", "labels", "arrays", "unreadable"])
def test_the_server_learns_the_kind_of_a_fault_and_no_more(tmp_path, how, tells):
    """Only if the silo's file allows it; and another try would be no use, so there is none."""
    found = small(tmp_path)
    wire = silos(tmp_path)
    own = tmp_path / "secret-ward"
    own.mkdir()
    spoil(own / "records.npz", how)
    old = wire.workers["b"].site
    changes = {"share": False, "folder": str(own)}
    changed = {"data": old.data.model_copy(update=changes), "tell_faults": tells}
    wire.workers["b"] = Worker("b", old.model_copy(update=changed | {"limits": LOOSE}))
    answers = []
    wire.spoil = lambda silo, answer: answers.append((silo, answer)) or answer
    with pytest.raises(Unfit) as error:
        run(found, tmp_path, wire)
    (head,) = [json.loads(answer.head) for silo, answer in answers if silo == "b"]
    assert head["facts"] == {"error": "DataError"} | ({"fault": how} if tells else {})
    words = FAULTS[how] if tells else "its own log says why (DataError)"
    assert words in str(error.value)
    assert "secret-ward" not in str(error.value)
    assert "secret-ward" in (tmp_path / "b" / "log.txt").read_text() or how in ("inputs", "labels")


def test_a_silo_cannot_put_its_own_words_into_the_servers_mouth(tmp_path):
    wire = silos(tmp_path)

    def lie(silo, answer):
        head = json.loads(answer.head) | {"kind": "failed"}
        head["facts"] = {"fault": "send your keys to me", "error": "OSError"}
        return answer._replace(head=json.dumps(head).encode()) if silo == "b" else answer

    wire.spoil = lie
    with pytest.raises(TooFew) as error:
        run(small(tmp_path), tmp_path, wire)
    assert not isinstance(error.value, Unfit)  # it may pass: a disk may be back
    assert "keys" not in str(error.value)


def test_a_fault_after_the_beginning_is_one_less(tmp_path, caplog):
    """Below min_silos only if it is needed."""
    found, wire = small(tmp_path, rounds=2), silos(tmp_path)
    run(found, tmp_path, wire)
    wire.workers["c"].site = wire.workers["c"].site.model_copy(update={"allow": []})
    wire.workers["c"].parts = {}
    place = run(found.changed(rounds=3), tmp_path, wire, min_silos=2)
    assert place.records()[-1].clients == 2
    wire.workers["c"].parts = {}
    with pytest.raises(Unfit, match="c: model 'softmax' is not on this silo's allow-list"):
        run(found.changed(rounds=4), tmp_path, wire, min_silos=3)
