"""What a silo refuses under secure aggregation, and what the server's recording shows."""

from __future__ import annotations

import base64
import hashlib
import json

import numpy as np
import pytest
from secure_federation import (
    NAMES,
    federation,
    kit,
    pem,
    project,
    secure_experiment,
    secure_worker,
)
from silo_tools import run

from fafed.core import tree
from fafed.privacy.secure_sum import messages as wire_messages
from fafed.privacy.secure_sum.identity import Identity
from fafed.privacy.secure_sum.messages import KeyList, Plan, Unmask
from fafed.privacy.secure_sum.silo import Silo
from fafed.silos import messages
from fafed.silos.messages import ExchangeId
from fafed.silos.secure.silo import SecureSums, as_tensor
from fafed.silos.server import TooFew
from fafed.silos.worker import Worker

FLOORED = {"limits": {"require_secure": True}}


def told(tmp_path, silo="a"):
    return (tmp_path / silo / "log.txt").read_text()


def rewritten(request, head, facts=None, content=None):
    """The same request with other facts, or with another content of its one tensor."""
    place = ExchangeId.from_head(head)
    packed = messages.pack((as_tensor(wire_messages.write(content)),))
    return messages.write(head["kind"], place, facts or head["facts"], packed)


def read(kind, request):
    return wire_messages.read(kind, bytes(request.body))


def refused(found, tmp_path, wire, words, silos="a", min_silos=3):
    """The run stops, silos say these words, and no silo has handed over a share."""
    with pytest.raises(TooFew):
        run(found, tmp_path, wire, min_silos=min_silos)
    for silo in silos:
        assert words in told(tmp_path, silo), told(tmp_path, silo)
    assert not [1 for name in NAMES if (tmp_path / name / "secure-sums.json").exists()]


# The floors of a silo's file.


def test_a_silo_that_requires_secure_aggregation_refuses_an_open_run(tmp_path):
    found = secure_experiment(tmp_path).changed(privacy={})
    refused(found, tmp_path, federation(tmp_path, **FLOORED), "its file has require_secure = true")


def test_a_silo_refuses_a_sum_of_fewer_silos_than_its_file_says(tmp_path):
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path, limits={"min_silos_in_sum": 6})
    refused(found, tmp_path, wire, "its file has min_silos_in_sum = 6")


def test_the_floor_holds_for_the_silos_that_are_there(tmp_path):
    """The server says that there are five, and invites four."""
    found = secure_experiment(tmp_path, "fedavg")
    wire = federation(tmp_path, limits={"min_silos_in_sum": 5})
    run(found.changed(rounds=1), tmp_path / "all", wire)
    wire = federation(tmp_path / "four", limits={"min_silos_in_sum": 5})
    found = secure_experiment(tmp_path / "four", "fedavg")
    wire.drop = lambda silo, kind, *_: silo == "b" and kind == "keys"
    refused(found, tmp_path / "four", wire, "the list of keys has 4 silos, 5 are needed")


def test_a_server_cannot_ask_for_an_open_answer_in_a_secure_run(tmp_path):
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path, **FLOORED)

    def lie(silo, head, request):
        open_head = json.dumps(head | {"kind": "visit"}).encode()
        return request._replace(head=open_head) if head["kind"] == "masked" else request

    wire.lie = lie
    refused(found, tmp_path, wire, "the silo's answer does not leave open", NAMES)


def test_a_second_hello_cannot_lift_the_floor(tmp_path):
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path, **FLOORED)

    def lie(silo, head, request):
        if head["kind"] == "keys":
            plan = json.loads(next((tmp_path / silo / "runs").glob("*/plan.json")).read_text())
            plan["experiment"].pop("privacy")
            hello = messages.write("hello", ExchangeId(head["run"]), plan, messages.EMPTY)
            wire.workers[silo].handle(hello)
        return request

    wire.lie = lie
    run(found, tmp_path, wire)  # the hello is refused, and the run goes on as it was
    assert "its file has require_secure = true" in told(tmp_path)


# A silo that cannot take part.


@pytest.mark.parametrize(
    ("secure", "words"),
    [
        ({}, "does not say which silos may be in a sum with it"),
        ({"silos": ["b", "c", "d"]}, "a itself is not among the silos"),
    ],
)
def test_a_silo_whose_file_does_not_name_the_silos_says_so_at_once(secure, words, tmp_path):
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path)
    wire.workers["a"] = secure_worker(tmp_path, "a", secure=secure)
    refused(found, tmp_path, wire, words)
    assert {kind for _, kind in wire.asked} == {"hello"}


def test_a_silo_without_a_key_says_so_at_once(tmp_path):
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path)
    wire.workers["a"] = Worker("a", wire.workers["a"].site)
    refused(found, tmp_path, wire, "this silo has no key to sign with")


def test_a_certificate_of_another_project_is_found_by_the_silo_itself(tmp_path):
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path)
    mixed = kit(tmp_path / "mixed", "a", 1)
    mixed.authority.write_bytes(pem("a", 0)[2])
    wire.workers["a"] = Worker("a", wire.workers["a"].site, mixed)
    refused(found, tmp_path, wire, "a has no certificate of this project's authority")


def test_a_certificate_of_another_project_is_found_by_the_others(tmp_path):
    """That silo trusts its own authority. The others do not, and stop."""
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path)
    wire.workers["a"] = Worker("a", wire.workers["a"].site, kit(tmp_path / "other", "a", 1))
    words = "a has no certificate of this project's authority"
    refused(found, tmp_path, wire, words, "bcde")


def test_a_silo_that_is_not_in_the_others_files_stays_out(tmp_path):
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path)
    for name in "abcd":
        wire.workers[name] = secure_worker(tmp_path, name, NAMES[:4])
    refused(found, tmp_path, wire, "e: not known to", "abcd")


def test_pinned_keys_stand_in_for_the_authority(tmp_path):
    """Also against an authority that issues a second certificate for a name."""
    from cryptography.hazmat.primitives import serialization

    def line(key):
        own = serialization.load_pem_private_key(key, None).public_key()
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        return own.public_bytes(*form).decode()

    found = secure_experiment(tmp_path, "fedavg").changed(rounds=1)
    keys = {name: line(pem(name, 0)[0]) for name in NAMES}
    wire = federation(tmp_path, secure={"keys": keys})
    assert run(found, tmp_path, wire).records()[-1].clients == 5
    forged = project(0).identity("a")  # of the same authority
    wire = federation(tmp_path / "forged", secure={"keys": keys})
    wire.workers["a"].sums.silo.identity = forged
    found = secure_experiment(tmp_path / "forged", "fedavg")
    refused(found, tmp_path / "forged", wire, "the list of keys of a has a wrong signature", "b")


# Lies of the server.


def other_model(silo, head, request):
    """One silo gets a model of its own."""
    if head["kind"] != "masked" or silo != "a":
        return request
    raw = bytes([request.body[0] ^ 1]) + request.body[1:]
    changed = head | {"sha256": hashlib.sha256(raw).hexdigest()}
    return messages.Message(json.dumps(changed).encode(), raw)


def other_bounds(silo, head, request):
    if head["kind"] != "masked" or silo != "a":
        return request
    facts = head["facts"] | {"bounds": {"round 0.message.delta": 40}}
    return request._replace(head=json.dumps(head | {"facts": facts}).encode())


def other_plan(silo, head, request):
    """All that one silo hears is consistent, and differs from what the others hear."""
    if head["kind"] != "keys" or silo != "a":
        return request
    plan = read(Plan, request)
    return rewritten(request, head, content=plan._replace(task=bytes(32)))


def other_round(silo, head, request):
    if head["kind"] != "keys" or silo != "a":
        return request
    plan = read(Plan, request)
    return rewritten(request, head, content=plan._replace(context=plan.context._replace(round=2)))


def own_key(silo, head, request):
    """The server puts a silo of its own between: with a key that it has signed itself."""
    if head["kind"] != "shares" or silo != "a":
        return request
    listed = read(KeyList, request)
    mallory = Identity.from_pem("b", *pem("localhost", 0)[:2])
    forged = next(one for one in listed.keys if one.name == "b")._replace(
        box_key=bytes(range(32)), certificate=mallory.certificate, signature=bytes(64)
    )
    keys = tuple(forged if one.name == "b" else one for one in listed.keys)
    return rewritten(request, head, content=KeyList(keys))


def both_shares(silo, head, request):
    if head["kind"] != "unmask":
        return request
    found = read(Unmask, request)
    return rewritten(request, head, content=found._replace(dropped=("b",)))


def other_boxes(silo, head, request):
    if head["kind"] != "masked":
        return request
    inbox = base64.b64encode(b"nonsense").decode()
    facts = head["facts"] | {"inbox": inbox}
    return request._replace(head=json.dumps(head | {"facts": facts}).encode())


@pytest.mark.parametrize(
    ("lie", "words", "who"),
    [
        (other_model, "something else than the plan says", "a"),
        (other_bounds, "something else than the plan says", "a"),
        (other_plan, "the list of keys of a has a wrong signature", "bcde"),
        (other_round, "the plan is for Context", "a"),
        (own_key, "b shows the certificate of localhost", "a"),
        (other_boxes, "these bytes are no message of the kind Inbox", "a"),
    ],
)
def test_a_lie_of_the_server_is_found(lie, words, who, tmp_path):
    found = secure_experiment(tmp_path, "fedavg").changed(algorithm={"name": "fedavg", "eta": 0.1})
    wire = federation(tmp_path)
    wire.lie = lie
    with pytest.raises(TooFew):
        run(found, tmp_path, wire, min_silos=5)
    for silo in who:
        assert words in told(tmp_path, silo), told(tmp_path, silo)
    assert not list(tmp_path.glob("?/secure-sums.json"))


def test_a_server_gets_one_of_both_shares_from_nobody(tmp_path):
    found = secure_experiment(tmp_path, "fedavg")
    wire = federation(tmp_path)
    wire.lie = both_shares
    place = run(found.changed(rounds=1), tmp_path, wire)
    assert place.records()[-1].clients == 0
    for silo in NAMES:
        assert "asks for both shares of b" in told(tmp_path, silo)
        assert not (tmp_path / silo / "secure-sums.json").exists()


def test_weights_are_those_that_all_silos_see(tmp_path):
    """A server that claims many examples for one silo would get its message almost alone."""
    found = secure_experiment(tmp_path, "fedavg", weights="examples")
    wire = federation(tmp_path)
    worker = wire.workers["a"]
    ask = worker.handle

    def claims(request):
        answer = ask(request)
        head = json.loads(answer.head)
        if head["kind"] == "welcome":
            head["facts"]["examples"] = 3000  # what the server makes of it
        return answer._replace(head=json.dumps(head).encode())

    worker.handle = claims
    refused(found, tmp_path, wire, "the sum would not have this silo's own weight", min_silos=5)


def test_two_processes_of_a_silo_share_one_ledger(tmp_path, monkeypatch):
    """Two jobs of one run, at the same time: the second one gets no share of the same exchange."""
    found = secure_experiment(tmp_path, "fedavg").changed(rounds=1)
    wire = federation(tmp_path)
    second = {name: Worker(name, w.site, w.kit) for name, w in wire.workers.items()}
    log = []

    def twice(silo, head, request):
        log.append((silo, head["kind"], second[silo].handle(request)))
        return request

    wire.lie = twice
    place = run(found, tmp_path, wire)
    kinds = {json.loads(answer.head)["kind"] for _, kind, answer in log if kind == "unmask"}
    assert "unmask" not in kinds
    assert place.records()[-1].clients == 5


# What the server receives.


def test_a_recording_of_the_server_has_no_message_in_clear(tmp_path, monkeypatch):
    """Neither as the numbers of the model nor as integers. In an open run the recording has all of
    them, and without masks the integers."""
    plain, clear = [], []
    masked = SecureSums.masked

    def noting(self, client, done, *rest):
        plain.extend(leaf.numpy().tobytes() for leaf in tree.leaves((done.message, done.buffers)))
        return masked(self, client, done, *rest)

    def before_masks(self, inbox, vector, lengths):
        clear.append(np.array(vector))
        return add_masks(self, inbox, vector, lengths)

    add_masks = Silo.masked
    monkeypatch.setattr(SecureSums, "masked", noting)
    monkeypatch.setattr(Silo, "masked", before_masks)
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path)
    run(found, tmp_path, wire)
    assert len(plain) >= 2 * 5 * 3
    assert len(clear) == 5 * 4
    assert not in_clear(wire, plain, clear)
    monkeypatch.setattr("fafed.privacy.secure_sum.masks.apply", lambda *_: None)
    wire = federation(tmp_path / "bare")
    run(secure_experiment(tmp_path / "bare"), tmp_path / "bare", wire)
    assert in_clear(wire, [], clear)
    monkeypatch.undo()
    opened = found.changed(privacy={})
    wire = federation(tmp_path)
    run(opened, tmp_path / "open", wire)
    assert in_clear(wire, plain, [])


def in_clear(wire, plain, clear):
    """The parts of messages that a recording shows: 16 bytes of numbers, or two integers."""
    recording = b"|".join(bytes(answer.head) + bytes(answer.body) for *_, answer in wire.received)
    found = [leaf[:16] for leaf in plain if len(leaf) >= 16 and leaf[:16] in recording]
    for vector in clear:
        large = np.flatnonzero(np.abs(vector[:-1].view(np.int64)) > 2**32)
        pairs = (vector[at : at + 2].tobytes() for at in large)
        found += [pair for pair in pairs if pair in recording]
    return found
