"""Silos that leave a secure sum at any step, and a server that dies."""

from __future__ import annotations

import json

import pytest
import torch
from secure_federation import NAMES, federation, in_simulation, secure_experiment
from silo_tools import final, run, simulated

from fafed.silos.server import TooFew
from fafed.silos.worker import Worker

STEPS = ("keys", "shares", "masked", "agree", "unmask")


@pytest.mark.parametrize("step", STEPS)
def test_a_silo_that_leaves_at_any_step_costs_no_repetition(step, tmp_path):
    """Of five silos the second leaves in round 2 and is back in round 3. It is in the sum if its
    masked message was there."""
    found = secure_experiment(tmp_path, "fedavg")
    wire = federation(tmp_path)
    late = STEPS[STEPS.index(step) :]
    wire.drop = lambda silo, kind, round, exchange: silo == "b" and round == 2 and kind in late
    place = run(found, tmp_path, wire, min_silos=4)
    counted = step in ("agree", "unmask")
    assert [record.clients for record in place.records()] == [5, 5 if counted else 4, 5]
    due = simulated(found, {} if counted else {2: {1}})
    assert torch.equal(final(place), due)
    assert [kind for _, kind in wire.asked].count("unmask") == 3 * 5 - (not counted)
    computed = [kind for silo, kind in wire.asked if silo == "a" and kind == "masked"]
    assert len(computed) == 3


@pytest.mark.parametrize("step", STEPS[:4])
def test_with_too_few_silos_the_run_stops_and_goes_on_with_the_same_bits(step, tmp_path):
    found = secure_experiment(tmp_path)
    wire = federation(tmp_path)
    late = STEPS[STEPS.index(step) :]
    wire.drop = lambda silo, kind, round, exchange: silo in "bc" and round == 2 and kind in late
    with pytest.raises(TooFew, match="bring them back and go on"):
        run(found, tmp_path, wire, min_silos=3)
    wire.drop = lambda *_: False
    there = run(found, tmp_path, wire, min_silos=3)
    assert torch.equal(final(there), final(in_simulation(found, tmp_path)))


def test_min_silos_holds_before_any_share_is_handed_over(tmp_path):
    found = secure_experiment(tmp_path, "fedavg")
    wire = federation(tmp_path)
    wire.drop = lambda silo, kind, round, exchange: silo == "b" and kind == "masked"
    with pytest.raises(TooFew, match="4 of 5 silos, and the run must have 5"):
        run(found, tmp_path, wire, min_silos=5)
    assert {kind for _, kind in wire.asked} == {"hello", "keys", "shares", "masked"}


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_too_few_silos_in_the_last_step_lose_the_round(name, tmp_path):
    """They have handed over shares. The round counts as one in which nobody answered."""
    found = secure_experiment(tmp_path, name)
    wire = federation(tmp_path)
    wire.drop = lambda silo, kind, round, exchange: silo in "bc" and round == 2 and kind == "unmask"
    place = run(found, tmp_path, wire, min_silos=3)
    assert [record.clients for record in place.records()] == [5, 0, 5]
    if name == "fedavg":  # SCAFFOLD has no simulation without everybody
        assert torch.equal(final(place), simulated(found, {2: range(5)}))
    assert "cannot be made again" in (place.path / "log.txt").read_text()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_server_that_dies_with_the_sum_in_hand_loses_one_round(name, tmp_path):
    found = secure_experiment(tmp_path, name)
    wire = federation(tmp_path)
    ask = wire.ask

    def killed(requests, *rest):
        found = list(ask(requests, *rest))
        if b'"unmask"' in found[0][1].head and json.loads(found[0][1].head)["round"] == 2:
            raise Killed
        return iter(found)

    wire.ask = killed
    with pytest.raises(Killed):
        run(found, tmp_path, wire)
    wire.ask = ask
    for who, worker in wire.workers.items():
        wire.workers[who] = Worker(who, worker.site, worker.kit)  # only their disks remember
    place = run(found, tmp_path, wire)
    assert [record.clients for record in place.records()] == [5, 0, 5]
    for who in NAMES:
        told = (tmp_path / who / "log.txt").read_text()
        assert "round 2, exchange 0" in told
        assert "this silo has handed over shares for it" in told


def test_a_silo_that_leaves_between_two_exchanges_loses_the_round(tmp_path):
    """The sum of the first exchange is out, so it cannot be made again without that silo."""
    found = secure_experiment(tmp_path, "mime")
    wire = federation(tmp_path)
    wire.drop = lambda silo, kind, round, exchange: silo == "b" and (round, exchange) == (2, 1)
    place = run(found, tmp_path, wire, min_silos=3)
    assert [record.clients for record in place.records()] == [5, 0, 5]
    assert torch.equal(final(place), simulated(found, {2: range(5)}))


def test_a_silo_that_has_lost_its_state_joins_as_a_new_one(tmp_path):
    found = secure_experiment(tmp_path, rounds=4)
    wire = federation(tmp_path)

    def lose(record):
        if record.round == 2:
            for path in (tmp_path / "b").glob("runs/*/round-*.state"):
                path.unlink()

    place = run(found, tmp_path, wire, lose)
    assert [record.clients for record in place.records()] == [5] * 4
    assert "has lost its state" in (place.path / "log.txt").read_text()
    assert torch.equal(final(place), simulated(found, {}, {3: 1}))


@pytest.mark.parametrize("nonsense", ["masked", "unmask"])
def test_wrong_numbers_of_a_silo_are_found_and_lose_the_round(nonsense, tmp_path):
    """Whoever sends other integers than those of its message, or other shares, makes a sum that
    messages within the bounds cannot have."""
    found = secure_experiment(tmp_path, "fedavg")
    wire = federation(tmp_path)
    sums = wire.workers["b"].sums

    def spoilt(*args):
        vector = masked(*args)
        vector[3] += 2**60
        return vector

    masked, unmask = sums.masked, sums.silo.unmask
    if nonsense == "masked":
        sums.masked = spoilt
    else:

        def other(request):
            given = unmask(request)
            seeds = tuple(one._replace(content=bytes(len(one.content))) for one in given.seeds)
            return given._replace(seeds=seeds)

        sums.silo.unmask = other
    place = run(found, tmp_path, wire)
    assert [record.clients for record in place.records()] == [0, 0, 0]
    assert "beyond its bound: a silo has sent wrong numbers" in (place.path / "log.txt").read_text()
