"""Messages that are too large for the memory: on disk and in pieces, with the very same numbers."""

from __future__ import annotations

import json
import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from silo_tools import final, local_federation, run, simulated
from small import experiment, write_data

from fafed.engines.client import ClientState
from fafed.engines.mean import Mean
from fafed.errors import FafedError
from fafed.experiments import assemble
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos import memory, messages, payload
from fafed.silos.messages import ExchangeId, Message, Refused
from fafed.silos.state_store import Lost, Store

PLACE = ExchangeId("run-1", 3, 0, "abc")


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(payload, "LARGE", 16)
    monkeypatch.setattr(payload, "PIECE", 64)
    monkeypatch.setattr(payload, "STRETCH", 5)


def small(tmp_path, name, **changes):
    write_data(tmp_path / "data", 3)
    settings = {"rounds": 3, "algorithm": {"name": name}, "engine": "loop"} | changes
    return Experiment.from_dict(experiment(tmp_path / "data", **settings))


def silos(tmp_path):
    return local_federation(tmp_path, allow=["softmax", str(tmp_path / "data")])


@pytest.mark.parametrize("name", ["fafed", "scaffold", "fedadam", "mime", "fedglomo"])
def test_the_numbers_of_the_loop_engine(name, tmp_path):
    found = small(tmp_path, name, weights="examples")
    here = RunDir(tmp_path / "simulated")
    execute(found, here)
    there = run(found, tmp_path, silos(tmp_path))
    assert torch.equal(final(here), final(there))
    assert [r.train_loss for r in here.records()] == [r.train_loss for r in there.records()]


def test_a_bad_answer_leaves_no_trace(tmp_path):
    found = small(tmp_path, "fafed")
    wire = silos(tmp_path)

    def spoil(silo, answer):
        head = json.loads(answer.head)
        if silo != "c" or head["round"] != 2:
            return answer
        body = bytearray(bytes(answer.body))
        body[:4] = torch.tensor([float("nan")]).numpy().tobytes()
        head["sha256"] = payload.digest(body)
        return Message(json.dumps(head).encode(), body)

    wire.spoil = spoil
    place = run(found, tmp_path, wire)
    assert [r.clients for r in place.records()] == [3, 2, 3]
    lines = (place.path / "audit.jsonl").read_text().splitlines()
    refused = [json.loads(x) for x in lines if '"refused"' in x]
    assert [(x["peer"], x["round"]) for x in refused] == [("c", 2)]
    assert "NaN" in refused[0]["why"]
    assert torch.equal(final(place), simulated(found, {2: {2}}))


def test_a_large_message_is_not_copied_when_it_is_packed():
    x, t = torch.arange(40.0), torch.tensor(3)
    packed = messages.pack((x, t))
    assert isinstance(packed.body, payload.Chain)
    assert len(packed.body) == 168
    whole = bytes(packed.body)
    assert whole == x.numpy().tobytes() + t.numpy().tobytes()
    assert packed.digest == payload.digest(whole)
    assert [packed.body[a:b] for a, b in [(0, 5), (150, 165), (-3, None), (7, 3)]] == [
        whole[0:5],
        whole[150:165],
        whole[-3:],
        b"",
    ]
    assert b"".join(bytes(piece) for piece in payload.pieces(packed.body)) == whole
    x[0] = 7.0
    assert bytes(packed.body)[:4] == x[:1].numpy().tobytes()


def test_read_from_disk_and_refused_from_there(tmp_path):
    content = (
        torch.arange(40.0),
        torch.tensor([True, False] * 20),
        torch.ones((), dtype=torch.int64),
    )
    sent = messages.write("x", PLACE, {}, messages.pack(content))
    there = Message(sent.head, payload.shelved(bytes(sent.body), tmp_path))
    assert isinstance(there.body, mmap.mmap)
    assert not list(tmp_path.iterdir())  # it has no name
    expected = {"x": messages.shapes(content)}
    back = messages.read(there, PLACE, expected, 10_000)
    assert all(torch.equal(a, b) for a, b in zip(back.tensors.values(), content, strict=True))
    there.body[0] ^= 1
    with pytest.raises(Refused, match="checksum"):
        messages.read(there, PLACE, expected, 10_000)


def test_the_mean_is_that_of_the_simulation(tmp_path):
    draw = torch.Generator().manual_seed(0)
    trees = [
        (torch.randn(4, 9, generator=draw), torch.randint(9, (23,), generator=draw), torch.ones(()))
        for _ in range(3)
    ]
    weights = [0.2, 1.7, 0.6]
    whole = Mean()
    for one, weight in zip(trees, weights, strict=True):
        whole.add(one, weight)
    pieces = memory.mean(trees, weights, tmp_path)
    for a, b in zip(whole.value(), pieces, strict=True):
        assert torch.equal(a, b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)


def test_a_state_that_is_mapped(tmp_path):
    store = Store(tmp_path)
    state = ClientState((torch.arange(50.0),), ())
    store.save(PLACE, state, None)
    found = store.load(PLACE, state).local[0]
    assert torch.equal(found, torch.arange(50.0))
    found += 1  # an algorithm's business, not the file's
    assert torch.equal(store.load(PLACE, state).local[0], torch.arange(50.0))
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    for cut in (data[:-4], data[:-1] + b"?", data[:9]):
        path.write_bytes(cut)
        with pytest.raises(Lost, match="cannot be used"):
            store.load(PLACE, state)


def test_a_parked_model_is_the_same_model(tmp_path):
    found = small(tmp_path, "fafed")
    plain, parked = (assemble.model(found, text=False) for _ in range(2))
    memory.park(parked, tmp_path)
    assert torch.equal(plain.x0, parked.x0)
    for a, b in zip(plain.module.parameters(), parked.module.parameters(), strict=True):
        assert torch.equal(a, b)
        assert b.requires_grad
        assert b.untyped_storage().data_ptr() == parked.x0.untyped_storage().data_ptr()


def test_answers_that_come_at_the_same_time(tmp_path):
    """Each in a thread of its own, which maps files and gives back the memory of all of them."""

    def one(_):
        for _ in range(100):
            held.append(payload.room(tmp_path, 100))
            payload.release()

    held, interval = [], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(one, range(4)))
    finally:
        sys.setswitchinterval(interval)


def test_a_full_disk_is_found_out_before_it_is_written_to(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FafedError, match=r"no room for 100 bytes in .*Free some space"):
        payload.room(tmp_path, 100)
