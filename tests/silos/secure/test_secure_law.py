"""Secure aggregation over silos: the numbers of the simulation, to the last bit."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from secure_federation import federation, in_simulation, secure_experiment
from silo_tools import final, run

from fafed.errors import ConfigError
from fafed.silos.server import TooFew
from fafed.silos.worker import Worker

THREE = ("a", "b", "c")
ALGORITHMS = ["fedavg", "scaffold", "fedadam", "stem", "fafed", "fedcm", "mime", "fedglomo"]


def same(here, there):
    assert torch.equal(final(here), final(there))
    for a, b in zip(here.records(), there.records(), strict=True):
        assert a.to_dict() | {"seconds": 0} == b.to_dict() | {"seconds": 0}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_silos_give_the_bits_of_the_simulation(name, tmp_path):
    found = secure_experiment(tmp_path, name, clients=3, rounds=2)
    same(in_simulation(found, tmp_path), run(found, tmp_path, federation(tmp_path, THREE)))


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": "examples"},
        {"weights": [1.0, 0.3, 2.5]},
        {"privacy": {"bits": 32, "first_bound": 8.0}},
        {"model": {"name": "modules:Assigned"}},
    ],
)
def test_weights_bits_and_buffers_are_those_of_the_simulation(changes, tmp_path):
    found = secure_experiment(tmp_path, clients=3, rounds=2, **changes)
    path = tmp_path / "data" / "client-1.npz"
    content = np.load(path)
    np.savez(path, inputs=content["inputs"][:17], targets=content["targets"][:17])
    same(in_simulation(found, tmp_path), run(found, tmp_path, federation(tmp_path, THREE)))


class Stop(Exception):
    pass


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path):
    """The bounds of the messages are in the checkpoint. The silos' processes are new."""
    found = secure_experiment(tmp_path, clients=3)
    wire = federation(tmp_path, THREE)

    def stop(record):
        if record.round == 2:
            raise Stop

    with pytest.raises(Stop):
        run(found, tmp_path, wire, stop)
    for name, worker in wire.workers.items():
        wire.workers[name] = Worker(name, worker.site, worker.kit)
    same(in_simulation(found, tmp_path), run(found, tmp_path, wire))


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("fedavg", 2.0**-6),  # rounds without clients, until the bounds have grown
        ("scaffold", 2.0**-9),  # exchanges are made again: it needs all silos
        ("mime", 2.0**-6),
        ("fafed", 2.0**-4),
    ],
)
def test_numbers_beyond_their_bounds(name, bound, tmp_path):
    found = secure_experiment(tmp_path, name, clients=3, privacy={"first_bound": bound}, rounds=5)
    wire = federation(tmp_path, THREE)
    there = run(found, tmp_path, wire)
    assert any(b'"beyond"' in answer.head for _, _, answer in wire.received)
    same(in_simulation(found, tmp_path), there)
    told = (tmp_path / "a" / "log.txt").read_text()
    assert re.search(
        r"absent from round \d: leaf (round|opening) 0.* is \d.*, beyond the bound \d", told
    )


def test_two_silos_are_too_few(tmp_path):
    found = secure_experiment(tmp_path, clients=2)
    wire = federation(tmp_path, ("a", "b"))
    with pytest.raises(ConfigError, match="a secure sum needs at least 3 silos, got 2"):
        run(found, tmp_path, wire)
    assert not wire.asked


def carrying(wire):
    """Every message has a new worker, as on Flower, which hands over what its memory holds."""
    held = dict.fromkeys(wire.workers, b"")
    plain = dict(wire.workers)

    class Carrier:
        def __init__(self, name):
            self.name, self.site = name, plain[name].site

        def handle(self, request):
            worker = Worker(self.name, self.site, plain[self.name].kit, carried=held[self.name])
            answer = worker.handle(request)
            held[self.name] = worker.held()
            return answer

    wire.workers = {name: Carrier(name) for name in plain}
    return held


@pytest.mark.parametrize("name", ["fedavg", "fafed"])
def test_a_new_process_for_every_message(name, tmp_path):
    found = secure_experiment(tmp_path, name, clients=3, rounds=2)
    wire = federation(tmp_path, THREE)
    held = carrying(wire)
    same(in_simulation(found, tmp_path), run(found, tmp_path, wire))
    assert not any(held.values())  # all is forgotten


def test_two_processes_do_not_answer_one_step_twice(tmp_path):
    """They begin with the same secrets. The second one would sign another list of silos."""
    found = secure_experiment(tmp_path, "fedavg", clients=3, rounds=1)
    wire = federation(tmp_path, THREE)
    held = carrying(wire)
    told = []

    def twice(silo, head, request):
        if head["kind"] in ("agree", "unmask", "masked", "shares"):
            before = held[silo]
            wire.workers[silo].handle(request)
            after, held[silo] = held[silo], before
            told.append(wire.workers[silo].handle(request).head)
            held[silo] = after
        return request

    wire.lie = twice
    with pytest.raises(TooFew):
        run(found, tmp_path, wire, min_silos=3)
    assert told
    assert all(b"this silo answers it once" in answer for answer in told)
