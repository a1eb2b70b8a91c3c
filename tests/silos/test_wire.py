"""Compressed messages of silos: the numbers of the simulation, and as few bytes as they promise."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors import safe_open
from silo_tools import NAMES, final, local_federation, run, simulated
from small import experiment, write_data

from fafed import ALGORITHMS
from fafed.errors import ConfigError
from fafed.experiments import checkpoint
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos import payload
from fafed.silos.bounds import Bounds
from fafed.silos.messages import HEAD_LIMIT, Message
from fafed.silos.server import TooFew
from fafed.silos.worker import Worker

WIRES = {
    "bf16": {"up": "bf16"},
    "int8": {"up": "int8"},
    "topk": {"up": "topk", "share": 0.3},
    "without feedback": {"up": "int8", "error_feedback": False},
}
D = 6 * 3 + 3  # the model's numbers


def small(tmp_path, name="fafed", **changes):
    write_data(tmp_path / "data", 3)
    settings = {"rounds": 4, "algorithm": {"name": name}, "engine": "loop", "eval_every": 9}
    return Experiment.from_dict(experiment(tmp_path / "data", **(settings | changes)))


def silos(tmp_path):
    return local_federation(
        tmp_path, NAMES, allow=["softmax", "modules:Assigned", str(tmp_path / "data")]
    )


def in_simulation(found, tmp_path):
    place = RunDir(tmp_path / "simulated")
    execute(found, place)
    return place


def sizes(wire):
    """The transport notes the bodies that leave: (silo, round, exchange) -> bytes."""
    found = {}

    def note(silo, answer):
        head = json.loads(answer.head)
        if head["kind"] == "answer":
            found[silo, head["round"], head["exchange"]] = len(answer.body)
        return answer

    wire.spoil = note
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("fafed", kind) for kind in WIRES),
        ("mime", "int8"),
        ("scaffold", "topk"),
        ("fedpac", "bf16"),
    ],
)
def test_silos_give_the_numbers_of_the_simulation(name, kind, tmp_path):
    found = small(tmp_path, name, wire=WIRES[kind], weights="examples")
    here = in_simulation(found, tmp_path)
    there = run(found, tmp_path, silos(tmp_path))
    assert torch.equal(final(here), final(there))
    for a, b in zip(here.records(), there.records(), strict=True):
        assert a.to_dict() | {"seconds": 0} == b.to_dict() | {"seconds": 0}


@pytest.mark.parametrize(
    ("name", "settings", "wire", "vectors"),
    [
        ("fafed", {}, {}, 3 * 4 * D),
        ("fafed", {"v_bits": 8}, {}, 2 * 4 * D + D),
        ("fafed", {}, {"up": "int8"}, 3 * D),
        ("fafed", {"v_bits": 8}, {"up": "bf16"}, 2 * 2 * D + D),
        ("fedavg", {}, {"up": "bf16"}, 2 * D),
        ("fedavg", {}, {"up": "topk", "share": 0.1}, 2 * 2 + 3),
        ("fedcams", {"compressor": "sign"}, {}, 3 + 4),
        ("fedcams", {"compressor": "topk", "fraction": 0.1}, {}, 2 * 4 + 3),
    ],
)
def test_the_bytes_that_leave_are_those_of_the_records(name, settings, wire, vectors, tmp_path):
    found = small(tmp_path, algorithm={"name": name, **settings}, wire=wire)
    here, wires = in_simulation(found, tmp_path), silos(tmp_path)
    left = sizes(wires)
    there = run(found, tmp_path, wires)
    assert torch.equal(final(here), final(there))
    before = 0
    for record in there.records():
        bodies = [size for (_, number, _), size in left.items() if number == record.round]
        assert record.bytes_up - before == sum(bodies)
        before = record.bytes_up
    assert [r.bytes_up for r in here.records()] == [r.bytes_up for r in there.records()]
    last = {silo: size for (silo, number, _), size in left.items() if number == 4}
    assert last == dict.fromkeys(NAMES, vectors)


def test_buffers_and_counters_travel_beside_a_compressed_message(tmp_path):
    found = small(tmp_path, "stem", model={"name": "modules:Assigned"}, wire=WIRES["int8"])
    here = in_simulation(found, tmp_path)
    there = run(found, tmp_path, silos(tmp_path))
    ours, theirs = (checkpoint.found(place.checkpoints)[0] for place in (here, there))
    with safe_open(ours, "pt") as a, safe_open(theirs, "pt") as b:
        names = [name for name in a.keys() if name.startswith("server.")]  # noqa: SIM118
        assert any(name.startswith("server.1.") for name in names)
        for name in names:
            assert torch.equal(a.get_tensor(name), b.get_tensor(name))


def test_a_new_process_for_every_message_and_a_stopped_server(tmp_path):
    """What a client owes and what scales are known survives both."""
    found = small(tmp_path, rounds=5, wire=WIRES["int8"])
    here = in_simulation(found, tmp_path)
    wire = silos(tmp_path)

    def forget(record):
        for name, worker in list(wire.workers.items()):
            wire.workers[name] = Worker(name, worker.site)
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(found, tmp_path, wire, forget)
    there = run(found, tmp_path, wire)
    assert torch.equal(final(here), final(there))


def test_a_lost_answer_takes_the_silo_back_to_what_it_owed_before(tmp_path):
    """Silo c computes round 2, and its answer never comes: in round 3 it goes on from round 1."""
    found = small(tmp_path, "fedavg", wire=WIRES["topk"])
    wire = silos(tmp_path)

    def lose(silo, answer):
        lost = silo == "c" and json.loads(answer.head)["round"] == 2
        return None if lost else answer

    wire.spoil = lose
    there = run(found, tmp_path, wire)
    assert [record.clients for record in there.records()] == [3, 2, 3, 3]
    assert torch.equal(final(there), simulated(found, {2: {2}}))


def test_a_silo_that_lost_its_state_owes_nothing(tmp_path, caplog):
    found, wire = small(tmp_path, "fedavg", wire=WIRES["topk"]), silos(tmp_path)

    def damage(record):
        if record.round == 2:
            for path in (tmp_path / "c").rglob("*.state"):
                path.write_bytes(path.read_bytes()[:-1] + b"?")

    with caplog.at_level(logging.WARNING):
        there = run(found, tmp_path, wire, damage)
    assert "silo 'c' has lost its state of the run; it joins as a new one" in caplog.text
    assert [record.clients for record in there.records()] == [3] * 4
    assert torch.equal(final(there), simulated(found, {}, {3: 2}))


def test_a_server_that_goes_back_one_round_takes_its_scales_along(tmp_path):
    found, wire = small(tmp_path, "fedavg", wire=WIRES["int8"]), silos(tmp_path)

    def die(record):
        if record.round == 3:
            for path in checkpoint.found(tmp_path / "run" / "checkpoints")[:1]:
                path.unlink()
            raise SystemExit

    with pytest.raises(SystemExit):
        run(found, tmp_path, wire, die)
    there = run(found, tmp_path, wire)
    assert [record.round for record in there.records()] == [1, 2, 3, 4]
    assert torch.equal(final(there), final(in_simulation(found, tmp_path)))


def changed(answer, name, numbers):
    """The same answer with other bytes in one of its parts."""
    head, body, at = json.loads(answer.head), bytearray(bytes(answer.body)), 0
    widths = {"int8": 1, "uint8": 1, "bfloat16": 2, "int16": 2, "float32": 4, "int32": 4}
    for own, dtype, shape in head["tensors"]:
        size = widths[dtype] * int(torch.Size(shape).numel())
        if own == name:
            body[at : at + size] = numbers(bytes(body[at : at + size]))
        at += size
    head["sha256"] = payload.digest(bytes(body))
    return Message(json.dumps(head).encode(), bytes(body))


@pytest.mark.parametrize(
    ("kind", "part", "numbers", "words"),
    [
        ("bf16", "0.delta", lambda b: b"\x00\x7f" * (len(b) // 2), "the norm of delta is"),
        ("bf16", "0.delta", lambda b: b"\x80\x7f" * (len(b) // 2), "holds NaN or infinity"),
        ("topk", "0.delta.mask", lambda b: b"\xff" * len(b), "it marks places beyond its 21"),
    ],
)
def test_a_lie_in_a_compressed_message_is_refused(kind, part, numbers, words, tmp_path, caplog):
    """The bounds hold for what arrives, after it is unpacked."""
    found, wire = small(tmp_path, "fedavg", wire=WIRES[kind]), silos(tmp_path)

    def spoil(silo, answer):
        bad = silo == "c" and json.loads(answer.head)["round"] > 1
        return changed(answer, part, numbers) if bad else answer

    wire.spoil = spoil
    with caplog.at_level(logging.WARNING):
        there = run(found, tmp_path, wire, bounds=Bounds(failures=9), min_silos=2)
    assert [r.clients for r in there.records()] == [3, 2, 2, 2]
    assert words in caplog.text
    assert torch.equal(final(there), simulated(found, {r: {2} for r in (2, 3, 4)}))


def test_a_full_message_in_place_of_a_compressed_one_is_refused(tmp_path, caplog):
    found, wire = small(tmp_path, "fedavg", wire=WIRES["int8"]), silos(tmp_path)

    def spoil(silo, answer):
        head = json.loads(answer.head)
        if silo != "c" or head["kind"] != "answer":
            return answer
        head["tensors"] = [["0.delta", "float32", [D]]]
        body = bytes(4 * D)
        head["sha256"] = payload.digest(body)
        return Message(json.dumps(head).encode(), body)

    wire.spoil = spoil
    with caplog.at_level(logging.WARNING):
        there = run(found, tmp_path, wire, min_silos=2)
    assert [r.clients for r in there.records()] == [2] * 4
    assert "0.delta has the type 'float32', expected" in caplog.text


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        (None, "scales is None, it must be a table"),
        ({"round 0.delta": 0}, "the scale of round 0.delta is 0, it must be > 0"),
        ({"round 0.delta": "much"}, "round 0.delta is 'much', it must be a number"),
    ],
)
def test_a_silo_refuses_scales_that_are_none(scales, words, tmp_path):
    found, wire = small(tmp_path, "fedavg", wire=WIRES["int8"]), silos(tmp_path)
    ask = wire.ask

    def spoilt(requests, *rest):
        for silo, request in requests.items():
            head = json.loads(request.head)
            if head["kind"] == "visit":
                head["facts"]["scales"] = scales
            requests[silo] = request._replace(head=json.dumps(head).encode())
        return ask(requests, *rest)

    wire.ask = spoilt
    with pytest.raises(TooFew):
        run(found, tmp_path, wire)
    assert words in (tmp_path / "a" / "log.txt").read_text("utf-8")


def test_the_server_reads_no_more_bytes_than_a_compressed_message_has(tmp_path):
    found, wire = small(tmp_path, "fedavg", wire=WIRES["int8"]), silos(tmp_path)
    limits, ask = [], wire.ask

    def noting(requests, seconds, limit):
        limits.append(limit - HEAD_LIMIT)
        return ask(requests, seconds, limit)

    wire.ask = noting
    run(found, tmp_path, wire)
    assert limits[1:5] == [2 * D, D, D, D]


def test_secure_sums_refuse_it_before_any_silo_is_asked(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be had with privacy\.secure"):
        small(tmp_path, wire=WIRES["int8"], privacy={"secure": True})


def test_every_algorithm_says_which_of_its_vectors_take_fewer_bytes():
    for name, kind in ALGORITHMS.items():
        assert bool(kind().coded) == (name == "fedcams")
