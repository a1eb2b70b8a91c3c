"""What one bad silo can do to a run: the table of its attacks, and what becomes of each.

The bad silo is the last of three. Whatever it does from the second round on, the run goes on as a
simulation in which that client fails, to the last bit; the log says its name.
"""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from silo_tools import NAMES, final, local_federation, run, simulated
from small import experiment, write_data

from fafed import ALGORITHMS
from fafed.errors import ConfigError
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.silos import payload
from fafed.silos.bounds import Bounds
from fafed.silos.messages import Message
from fafed.silos.serve import serve
from fafed.silos.server import FederationConfig, TooFew
from fafed.silos.site import Refusal
from fafed.training.loop import Diverged

ROUNDS = 8


def small(tmp_path, name="fedavg", **changes):
    write_data(tmp_path / "data", 3)
    settings = {"rounds": ROUNDS, "algorithm": {"name": name}, "engine": "loop", "eval_every": 9}
    return Experiment.from_dict(experiment(tmp_path / "data", **(settings | changes)))


def silos(tmp_path, names=NAMES):
    return local_federation(tmp_path, names, allow=["softmax", str(tmp_path / "data")])


def said(answer: Message, numbers=None, kind=None, **facts: object) -> Message:
    """The same answer, but its silo lies."""
    head = json.loads(answer.head)
    body = bytes(answer.body)
    if numbers is not None:
        at, parts = 0, []
        for name, dtype, shape in head["tensors"]:
            leaf = np.frombuffer(body, dtype, int(np.prod(shape)), at)
            parts.append(np.asarray(numbers(name, leaf), dtype).tobytes())
            at += leaf.nbytes
        body = b"".join(parts)
    if kind is not None:
        head |= {"kind": kind, "tensors": []}
        body = b""
        head["facts"] = {}
    head["facts"] |= facts
    head["sha256"] = payload.digest(body)
    return Message(json.dumps(head).encode(), body)


def times(factor):
    return lambda name, leaf: factor * leaf


ATTACKS = {  # name: what it sends, and what the server says of it
    "times -1000": (lambda a: said(a, times(-1000)), "the norm of delta is"),
    "3e38": (lambda a: said(a, lambda n, leaf: leaf * 0 + 3e38), "the norm of delta is"),
    "diverged": (lambda a: said(a, kind="diverged", what="loss"), "silo 'c' diverged"),
    "failed": (lambda a: said(a, kind="failed", error="OSError"), "silo 'c' failed: OSError"),
    "refused": (lambda a: said(a, kind="refused", why="no"), "silo 'c' refused: no"),
    "lost": (lambda a: said(a, kind="lost"), "silo 'c' lost"),
    "no samples": (lambda a: said(a, samples=0), "samples is 0, it must be a whole number from 1"),
    "many samples": (lambda a: said(a, samples=2**53), "samples is 9007199254740992"),
    "no number": (lambda a: said(a, loss="low"), "loss is 'low', it must be a number"),
    "3 MB head": (lambda a: Message(b" " * 3_000_000 + a.head, a.body), "more than the 1048660"),
    "a forged line": (
        lambda a: said(a, kind="refused", why="no\n2026-01-01 00:00:00,000 INFO all is well"),
        "silo 'c' refused: no\N{REPLACEMENT CHARACTER}2026",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_one_bad_silo_is_left_out_and_the_others_go_on(attack, tmp_path, caplog):
    lie, words = ATTACKS[attack]
    found, wire = small(tmp_path), silos(tmp_path)

    def spoil(silo, answer):
        bad = silo == "c" and json.loads(answer.head)["round"] > 1
        return lie(answer) if bad else answer

    wire.spoil = spoil
    with caplog.at_level(logging.WARNING):
        place = run(found, tmp_path, wire, bounds=Bounds(failures=5), min_silos=2)
    assert [r.clients for r in place.records()] == [3] + [2] * (ROUNDS - 1)
    assert torch.equal(final(place), simulated(found, {r: {2} for r in range(2, ROUNDS + 1)}))
    assert words in caplog.text
    assert "'a'" not in caplog.text  # nobody else is blamed
    assert "'b'" not in caplog.text
    lines = (place.path / "log.txt").read_text().splitlines()
    assert not any(line.startswith("2026-01-01") for line in lines)
    # After five failures it is not even asked.
    assert "silo 'c' has failed 5 times and is asked no more" in caplog.text
    audit = [json.loads(x) for x in (place.path / "audit.jsonl").read_text().splitlines()]
    asked = [x for x in audit if (x["direction"], x["peer"], x["kind"]) == ("sent", "c", "visit")]
    assert len(asked) == 6


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda n, leaf: leaf * 0 + 3e38, "the norm of"),
        (lambda n, leaf: leaf - 100 if n == "0.x" else leaf, "the norm of x is"),
        (lambda n, leaf: -leaf if n == "0.v" else leaf, "v holds squares, and some are negative"),
    ],
)
def test_points_are_measured_from_what_was_sent_down(lie, words, tmp_path, caplog):
    found, wire = small(tmp_path, "fafed", rounds=3), silos(tmp_path)

    def spoil(silo, answer):
        bad = silo == "c" and json.loads(answer.head)["round"] == 2
        return said(answer, lie) if bad else answer

    wire.spoil = spoil
    with caplog.at_level(logging.WARNING):
        place = run(found, tmp_path, wire)
    assert words in caplog.text
    assert torch.equal(final(place), simulated(found, {2: {2}}))


def test_a_silo_that_loses_its_state_again_and_again_costs_one_new_start(tmp_path, caplog):
    """It can lose only what it had: after the first time there is nothing to lose."""
    found, wire = small(tmp_path, "fafed"), silos(tmp_path)

    def spoil(silo, answer):
        bad = silo == "c" and json.loads(answer.head)["round"] > 1
        return said(answer, kind="lost") if bad else answer

    wire.spoil = spoil
    with caplog.at_level(logging.WARNING):
        place = run(found, tmp_path, wire)
    absent = {r: {2} for r in range(2, ROUNDS + 1)}
    assert torch.equal(final(place), simulated(found, absent, {2: 2}))
    assert caplog.text.count("it joins as a new one") == 1


def test_a_silo_that_loses_its_state_between_two_exchanges_does_not_stop_the_others(tmp_path):
    """Each round of Mime has two."""
    found, wire = small(tmp_path, "mime", rounds=3), silos(tmp_path)

    def spoil(silo, answer):
        head = json.loads(answer.head)
        bad = silo == "c" and head["round"] == 2 and head["exchange"] == 1
        return said(answer, kind="lost") if bad else answer

    wire.spoil = spoil
    assert [r.clients for r in run(found, tmp_path, wire).records()] == [3, 2, 3]


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        ({"examples": 2**53}, "examples is 9007199254740992"),
        ({"examples": 30 * 101}, "it claims 3030 examples, the median of the others is 30"),
        ({"examples": 0}, "examples is 0, it must be a whole number from 1"),
        ({"examples": 1.5}, "examples is 1.5"),
        ({"units": 0}, "units is 0, expected 5"),
        ({"epoch_steps": 0}, "epoch_steps is 0, it must be a whole number from 1"),
        ({"epoch_steps": 10**9}, "epoch_steps is 1000000000, the others have 6"),
    ],
)
def test_a_run_does_not_begin_on_claims_that_cannot_be(lies, words, tmp_path, caplog):
    """Also if it is the first silo's, whose word once counted for all."""
    found, wire = small(tmp_path, weights="examples"), silos(tmp_path)
    wire.spoil = lambda silo, answer: said(answer, **lies) if silo == "a" else answer
    with caplog.at_level(logging.WARNING), pytest.raises(TooFew, match=r"\['a'\] do not"):
        run(found, tmp_path, wire)
    assert f"refused the welcome of 'a': {words}" in caplog.text


def test_the_server_takes_larger_numbers_if_it_is_told_to(tmp_path):
    """Three silos, one of which has a hundred and one times the examples of the others."""
    found, wire = small(tmp_path, rounds=2, weights="examples"), silos(tmp_path)

    def spoil(silo, answer):
        if json.loads(answer.head)["kind"] == "welcome":
            return said(answer, examples=3030) if silo == "a" else answer
        return said(answer, times(50)) if silo == "b" else answer

    wire.spoil = spoil
    place = RunDir(tmp_path / "run")
    bounds = Bounds(norm=100.0, examples=200.0)
    serve(found, place, wire, FederationConfig.with_defaults(NAMES), bounds=bounds)
    assert [r.clients for r in place.records()] == [3, 3]


def test_below_min_silos_a_silo_that_diverged_stops_the_run_by_its_name(tmp_path):
    found, wire = small(tmp_path), silos(tmp_path)
    wire.spoil = lambda silo, answer: (
        said(answer, kind="diverged", what="loss")
        if silo == "b" and json.loads(answer.head)["round"] == 3
        else answer
    )
    with pytest.raises(Diverged, match="round 3: client 1 produced a non-finite loss") as stopped:
        run(found, tmp_path, wire, min_silos=3)
    assert (stopped.value.client, stopped.value.round) == (1, 3)


def test_a_state_that_is_not_finite_is_never_saved(tmp_path):
    found = small(tmp_path, algorithm={"name": "overflowing:Overflowing", "eta": 0.1})
    own = ["softmax", str(tmp_path / "data"), "overflowing:Overflowing"]
    wire = local_federation(tmp_path, allow=own)
    with pytest.raises(Diverged, match="round 2: every message was finite, but the server's new"):
        run(found, tmp_path, wire)
    place = RunDir(tmp_path / "run")
    assert len(place.records()) == 1
    assert torch.isfinite(final(place)).all()


def write_unlike(folder, clients):
    """One silo has seven times the rows of the others, another has inputs five times as large, and
    each has a class of its own but for a few rows."""
    folder.mkdir(parents=True)
    r = np.random.default_rng(0)
    centres = 2 * r.normal(size=(3, 6))
    for i in range(clients):
        n = (280, 40, 40)[i]
        y = np.where(r.random(n) < 0.8, i, r.integers(0, 3, n))
        x = (1, 1, 5)[i] * (centres[y] + r.normal(size=(n, 6)))
        np.savez(folder / f"client-{i}.npz", inputs=x.astype(np.float32), targets=y)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_honest_silos_that_differ_much_are_never_refused(name, tmp_path, caplog):
    clients = ALGORITHMS[name]().population or 3
    write_unlike(tmp_path / "data", clients)
    settings = {"rounds": 6, "engine": "loop", "eval_every": 9, "weights": "examples"}
    content = experiment(tmp_path / "data", algorithm={"name": name}, **settings)
    found = Experiment.from_dict(content)
    with caplog.at_level(logging.WARNING):
        there = run(found, tmp_path, silos(tmp_path, NAMES[:clients]))
    assert "refused" not in caplog.text
    assert [r.clients for r in there.records()] == [clients] * 6
    execute(found, here := RunDir(tmp_path / "simulated"))
    assert torch.equal(final(here), final(there))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"name": "os:system", "command": "touch owned"}}, "model 'os:system'"),
        ({"algorithm": {"name": "elsewhere:Own"}}, "algorithm 'elsewhere:Own'"),
        ({"loss": "elsewhere:loss"}, "loss 'elsewhere:loss'"),
        ({"metrics": ["accuracy", "elsewhere:metric"]}, "metric 'elsewhere:metric'"),
    ],
)
def test_the_server_runs_no_code_that_is_not_on_its_list(changes, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, wire = small(tmp_path, **changes), silos(tmp_path)
    place = RunDir(tmp_path / "run")
    with pytest.raises(Refusal, match=f"{words} is not on the server's allow-list"):
        serve(found, place, wire, FederationConfig.with_defaults(NAMES), allow=[])
    assert not (tmp_path / "owned").exists()
    assert not place.exists


def test_data_that_the_server_measures_on_are_on_its_list_too(tmp_path):
    found, wire = small(tmp_path, rounds=1), silos(tmp_path)
    place, data = RunDir(tmp_path / "run"), str(tmp_path / "data")
    with pytest.raises(Refusal, match="data folder"):
        serve(found, place, wire, FederationConfig.with_defaults(NAMES), measure="share", allow=[])
    serve(found, place, wire, FederationConfig.with_defaults(NAMES), measure="share", allow=[data])


def test_the_server_s_file_names_its_code_and_its_bounds(tmp_path, monkeypatch):
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")
    from fafed.silos.transports.nvflare.kit_files import server_file

    file = tmp_path / "fafed.toml"
    monkeypatch.setenv("FAFED_SERVER", str(file))
    file.write_text('runs = "r"\nallow = ["my_models:Net"]\n[bounds]\nnorm = 100\n')
    found = server_file(tmp_path)
    assert (found.allow, found.bounds) == (["my_models:Net"], Bounds(norm=100.0))
    file.write_text("[bounds]\nnorm = 1\n")
    with pytest.raises(ConfigError, match="norm"):
        server_file(tmp_path)
    file.write_text("[bounds]\nnrom = 30\n")
    with pytest.raises(ConfigError, match=r"unknown key 'bounds.nrom'; did you mean 'norm'"):
        server_file(tmp_path)
    file.write_text("")
    assert (server_file(tmp_path).allow, server_file(tmp_path).bounds) == ([], Bounds())


def test_a_bound_on_norms_does_not_find_wrong_labels(tmp_path):
    """A silo with wrong labels sends messages like all others, only in another direction. No bound
    stops it, and the model gets worse."""
    found = small(tmp_path)
    honest = run(found, tmp_path, silos(tmp_path))
    path = tmp_path / "data" / "client-2.npz"
    content = np.load(path)
    np.savez(path, inputs=content["inputs"], targets=(content["targets"] + 1) % 3)
    place = tmp_path / "flipped"
    wire = local_federation(place, allow=["softmax", str(tmp_path / "data")])
    flipped = run(found, place, wire)
    assert [record.clients for record in flipped.records()] == [3] * ROUNDS
    before, after = (place.records()[-1].test["loss"] for place in (honest, flipped))
    assert after > 1.2 * before
