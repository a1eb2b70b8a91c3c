"""What is read is what was written, and nothing else is ever read."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from silo_tools import site

from fafed.engines.client import ClientState
from fafed.silos import messages
from fafed.silos.messages import ExchangeId, Message, Refused
from fafed.silos.state_store import Lost, Store
from fafed.silos.worker import Worker

PLACE = ExchangeId("run-1", 3, 1, "abc")
TREE = (torch.arange(6.0).reshape(2, 3), (torch.tensor(7), torch.tensor([True, False])))
EXPECTED = {"answer": messages.shapes(TREE), "lost": {}}
LIMIT = 10_000


def good():
    return messages.write("answer", PLACE, {"loss": 0.1}, messages.pack(TREE))


def test_there_and_back():
    found = messages.read(good(), PLACE, EXPECTED, LIMIT)
    assert found.facts == {"loss": 0.1}
    for (name, a), b in zip(found.tensors.items(), [TREE[0], *TREE[1]], strict=True):
        assert torch.equal(a, b), name
        assert a.dtype == b.dtype
    for dtype in messages.NAMES:
        one = (torch.ones(3).to(dtype), torch.ones(()).to(dtype), torch.ones(0).to(dtype))
        sent = messages.write("x", PLACE, {}, messages.pack(one))
        back = messages.read(sent, PLACE, {"x": messages.shapes(one)}, LIMIT)
        assert all(torch.equal(a, b) for a, b in zip(back.tensors.values(), one, strict=True))


def changed(**changes):
    head = json.loads(good().head) | changes
    return Message(json.dumps(head).encode(), good().body)


def spoilt(value):
    tree = (TREE[0].clone(), TREE[1])
    tree[0][1, 1] = value
    return messages.write("answer", PLACE, {}, messages.pack(tree))


def of(tree):
    return messages.write("answer", PLACE, {}, messages.pack(tree))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (changed(run="other"), "run is 'other', expected 'run-1'"),
        (changed(round=4), "round is 4, expected 3"),
        (changed(exchange=0), "exchange is 0, expected 1"),
        (changed(attempt="b"), "attempt is 'b'"),
        (changed(attempt="../../etc"), "letters and digits"),
        (changed(format=2), "format is 2, this fafed speaks 1"),
        (changed(kind="visit"), "expected answer or lost"),
        (changed(round="3"), "it must be a int"),
        (changed(tensors=[]), "it holds"),
        (changed(tensors=[["0", "float32", [-1]]]), "shape"),
        (changed(tensors=[["0", "float32", [10**12, 10**12]]]), "shape"),
        (of((TREE[0].reshape(3, 2), TREE[1])), "shape"),
        (of((TREE[0].double(), TREE[1])), "type 'float64', expected float32"),
        (of((TREE[0], TREE[0])), "nobody asked for"),
        (spoilt(float("nan")), "0 holds NaN or infinity"),
        (spoilt(float("-inf")), "0 holds NaN or infinity"),
        (Message(good().head, good().body[:-1]), "need more"),
        (Message(good().head, good().body + b"0"), "its tensors need"),
        (Message(good().head, bytes(len(good().body))), "checksum"),
        (Message(b"", b""), "not JSON"),
        (Message(b"[" * 100_000, b""), "more than"),
        (Message(b"[" * 5000, b""), "not JSON"),
        (Message(b'{"format": NaN}', b""), "not JSON"),
        (Message(good().head, bytes(LIMIT)), "bytes, more than"),
    ],
)
def test_what_is_refused(message, why):
    with pytest.raises(Refused, match=why):
        messages.read(message, PLACE, EXPECTED, LIMIT)


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e400, "1", None, True, [1]])
def test_facts_that_are_no_numbers(value):
    for whole in (False, True):
        with pytest.raises(Refused, match="loss is"):
            messages.number({"loss": value}, "loss", whole=whole)


def mutants(count):
    """Bits flipped, pieces cut, doubled, swapped, and JSON values replaced."""
    r = np.random.default_rng(0)
    head, body = good().head, bytes(good().body)
    odd = [None, True, -1, 2**70, 1e308, "", "x" * 1000, [], {}, [[]], [["0"]], {"a": [1]}]
    for i in range(count):
        parts = [bytearray(head), bytearray(body)]
        kind, which = i % 5, int(r.integers(2))
        part = parts[which]
        a, b = sorted(int(n) for n in r.integers(0, len(part), 2))
        if kind == 0:
            for at in r.integers(0, len(part), r.integers(1, 4)):
                part[at] ^= 1 << int(r.integers(8))
        elif kind == 1:
            del part[a:b]
        elif kind == 2:
            part[a:a] = part[a:b]
        elif kind == 3:
            parts = [bytearray(r.bytes(int(r.integers(300)))), parts[1 - which]]
        else:
            found = json.loads(head)
            key = list(found)[int(r.integers(len(found)))]
            found[key] = odd[int(r.integers(len(odd)))]
            if r.integers(2):
                rows = json.loads(head)["tensors"]
                rows[int(r.integers(3))][int(r.integers(3))] = odd[int(r.integers(len(odd)))]
                found["tensors"] = rows
            parts[0] = bytearray(json.dumps(found).encode())
        yield Message(bytes(parts[0]), bytes(parts[1]))


def test_ten_thousand_mutated_messages(tmp_path):
    refused = accepted = 0
    for mutant in mutants(10_000):
        try:
            found = messages.read(mutant, PLACE, EXPECTED, LIMIT)
        except Refused:
            refused += 1
        else:
            accepted += 1
            assert all(t.isfinite().all() for t in found.tensors.values())
            assert {n: (tuple(t.shape), t.dtype) for n, t in found.tensors.items()} in (
                EXPECTED["answer"],
                {},
            )
    assert refused > 9_000
    assert accepted  # a changed fact is no reason to refuse: the facts are checked by who asks


def test_a_silo_answers_whatever_it_is_sent(tmp_path):
    worker = Worker("a", site(tmp_path))
    for mutant in mutants(500):
        answer = worker.handle(mutant)
        assert json.loads(answer.head)["kind"] in ("refused", "failed")


def test_store_keeps_the_newest_and_where_it_came_from(tmp_path):
    store = Store(tmp_path)
    state = ClientState((torch.arange(3.0),), ())
    at = [ExchangeId("run-1", r, 0, f"a{r}") for r in range(5)]
    store.save(at[1], state, None)
    for r in (2, 3, 4):
        store.save(at[r], ClientState((torch.arange(3.0) + r,), ()), at[r - 1])
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(store.load(at[4], state).local[0], torch.arange(3.0) + 4)
    assert torch.equal(store.load(at[3], state).local[0], torch.arange(3.0) + 3)
    for wrong in (at[2], at[4]._replace(attempt="b"), at[4]._replace(exchange=1)):
        with pytest.raises(Lost):
            store.load(wrong, state)
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        for cut in (data[:5], data[:-1], data[:-1] + b"?", b""):
            path.write_bytes(cut)
            with pytest.raises(Lost, match="cannot be used"):
                store.load(at[int(path.name[6:13])], state)
