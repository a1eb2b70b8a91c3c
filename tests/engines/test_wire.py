"""Compressed messages: every algorithm, every compression, and the laws that hold for them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from modules import batch
from problem import Problem, close

import fafed
from fafed import ALGORITHMS, FAFED, ConfigError, FedAvg, Privacy, Wire
from fafed.core import randomness, tree
from fafed.core.codes import LEVELS, Int8
from fafed.data.sources.examples import Examples
from fafed.experiments import checkpoint
from fafed.objectives.function import Function
from fafed.training.build import build

WIRES = [Wire("bf16"), Wire("int8"), Wire("topk", share=0.4)]
wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.up)
OWN = {"fedcams"}  # compresses by itself
SETTINGS = {"fedpac": {"eps": 1e-4}}


def make(name, **more):
    fields = {f.name for f in dataclasses.fields(ALGORITHMS[name])}
    common = {"eta": 0.05, "rho": 0.1} | SETTINGS.get(name, {}) | more
    return ALGORITHMS[name](**{k: v for k, v in common.items() if k in fields})


every = pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in OWN])


@every
@wires
def test_every_algorithm_and_every_back_end(name, wire):
    p = Problem(make(name).population or 3)
    loop = p.xs(make(name), 2, 3, wire=wire)
    if wire.up != "bf16":  # which is as easy as no compression
        close(p.xs(make(name), 2, 3, wire=wire, engine="vmap"), loop, atol=1e-12)
    if wire.up == "int8":
        whole = p.xs(make(name), 2, 3)
        assert 0 < (loop - whole).norm() < 0.01 * whole.norm()


@wires
def test_workers_and_the_order_of_clients_do_not_change_a_bit(wire):
    p = Problem(6)
    one, two = (p.xs(FAFED(0.05), 3, 4, wire=wire, engine="vmap", workers=w) for w in (1, 2))
    assert torch.equal(one, two)
    p = Problem(4, b="full", B="full")
    here = p.xs(FAFED(0.05), 3, 1, wire=wire)
    p.parts = [p.parts[i] for i in (2, 0, 3, 1)]
    close(p.xs(FAFED(0.05), 3, 1, wire=wire), here, atol=1e-12)


@pytest.mark.parametrize("name", ["fafed", "mime", "fedglomo", "scaffold"])
@wires
def test_a_resumed_run_has_the_same_bits(name, wire, tmp_path):
    p = Problem(4)
    run = p.run(make(name), 2, 5, wire=wire)
    for _ in range(2):
        run.round()
    path = checkpoint.save(run, tmp_path, "d")
    list(run)
    again = p.run(make(name), 2, 5, wire=wire)
    checkpoint.load(again, path, "d")
    list(again)
    assert torch.equal(again.state.shared.x, run.state.shared.x)


def test_nothing_of_a_failed_round_stays():
    p, wire = Problem(4), Wire("int8")
    run = p.run(FedAvg(0.05), 2, 3, wire=wire)
    run.round()
    f, run.engine.objective.f = run.engine.objective.f, lambda x, data: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run.round()
    run.engine.objective.f = f
    list(run)
    assert torch.equal(run.state.shared.x, p.xs(FedAvg(0.05), 2, 3, wire=wire)[-1])


@wires
def test_who_does_not_take_part_keeps_what_it_owes(wire):
    p = Problem(4)
    run = p.run(FedAvg(0.05), 2, 3, wire=wire, participation=[[0, 1], [0, 2, 3], [1, 2]])
    run.round()
    (owed,) = run.engine.states[1].owed[0]
    assert owed.norm() > 0
    run.round()
    assert torch.equal(run.engine.states[1].owed[0][0], owed)
    run.round()
    assert not torch.equal(run.engine.states[1].owed[0][0], owed)


@wires
def test_what_was_sent_and_what_is_owed_add_up(wire):
    """The server's model is the mean of all updates, but for what the clients still owe."""
    p = Problem(4, d=9)
    moved = torch.zeros_like(p.x0)
    run = p.run(FedAvg(0.05), 1, 6, wire=wire)
    x = run.state.shared.x
    for record in run:
        moved += sum(-0.05 * p.g(i, record.steps, x) for i in range(4)) / 4
        x = run.state.shared.x
        owed = sum(state.owed[0][0] for state in run.engine.states) / 4
        close(x + owed, p.x0 + moved, atol=1e-12)


# Without error feedback, top-k has a bias.


def disagreeing(wire, rounds=200):
    """Two clients pull hard on the first number, in opposite directions, and together gently on the
    second. The mean of the last models."""
    pool = (torch.tensor([[1.0, 0.5], [-1.0, 0.5]], dtype=torch.float64),)
    source = Examples(pool, [np.array([0]), np.array([1])], batch_size="full")
    goal = Function(lambda x, data: ((x - data[0]) ** 2).sum() / 2, torch.zeros(2).double())
    run = build(FedAvg(0.05), goal, source, rounds=rounds, local_steps=1, engine="loop", wire=wire)
    xs = [run.state.shared.x for _ in run]
    return torch.stack(xs[rounds // 2 :]).mean(0)


def test_error_feedback_removes_the_bias_of_topk():
    best = torch.tensor([0.0, 0.5], dtype=torch.float64)
    close(disagreeing(Wire("topk", share=0.5)), best, atol=0.02)
    mutant = disagreeing(Wire("topk", share=0.5, error_feedback=False))
    assert mutant[1] == 0  # it never arrives


# With int8, all clients share a scale.


def integers(p, monkeypatch):
    """The sums of the clients' updates in the third round, in units of the scale."""
    run = p.run(FedAvg(0.05), 2, 3, wire=Wire("int8"))
    run.round()
    run.round()
    before, scale = run.state.shared.x, run.engine.wiring.scales["round 0.delta"]
    run.round()
    return (run.state.shared.x - before) * p.N / scale


def test_sums_of_integers_stay_sums(monkeypatch):
    p = Problem(5)
    units = integers(p, monkeypatch)
    close(units, units.round(), atol=1e-9)
    assert units.abs().max() > 10
    encode = Int8.encode

    def own_scale(self, rows, keys):
        scale = float(rows.abs().max()) / LEVELS
        parts = encode(Int8(scale), rows, keys)
        return {"": parts[""].double() * scale / self.scale}  # as if it were sent along

    monkeypatch.setattr(Int8, "encode", own_scale)  # a mutant: every client has its own
    units = integers(p, monkeypatch)
    assert (units - units.round()).abs().max() > 0.05


def test_the_scale_is_twice_the_mean_of_the_largest_values():
    p = Problem(3, b="full")
    run = p.run(FedAvg(0.05), 1, 2, wire=Wire("int8"))
    run.round()
    sizes = [float((0.05 * p.full(i, p.x0)).abs().max()) for i in range(3)]
    scale = run.engine.wiring.scales["round 0.delta"]
    assert scale == pytest.approx(2 * sum(sizes) / 3 / LEVELS, rel=0.01)


def test_a_vector_of_zeros_has_no_scale_and_keeps_an_old_one():
    run = Problem(3).run(FedAvg(0.05), 1, 3, wire=Wire("int8"))
    run.round()
    wiring = run.engine.wiring
    before = dict(wiring.scales)
    wiring.settle("round 0", {"delta": 0.0})
    assert wiring.pending == before


def test_rounding_depends_on_seed_client_and_round_alone():
    key = {
        randomness.keys("wire", s, t, 0, 0, c).item()
        for s in (0, 1)
        for t in (2, 3)
        for c in (4, 5)
    }
    assert len(key) == 8


# Bytes.


def test_bytes_are_those_of_the_parts():
    d, n = 200, 3
    p = Problem(n, d=d)

    def up(algorithm, wire):
        first, *_, last = p.run(algorithm, 2, 3, wire=wire)
        rounds = [first.bytes_up, (last.bytes_up - first.bytes_up) / 2]
        return [bytes / n for bytes in rounds]

    assert up(FedAvg(0.05), Wire("bf16")) == [2 * d, 2 * d]
    assert up(FedAvg(0.05), Wire("int8")) == [2 * d, d]  # no scale in the first round
    assert up(FedAvg(0.05), Wire("topk", share=0.05)) == [10 * 4, 10 * 4]
    opening = 2 * 8 * d  # m and v as they are
    assert up(FAFED(0.05), Wire("bf16")) == [opening + 6 * d, 6 * d]
    assert up(FAFED(0.05), Wire("int8")) == [opening + 5 * d, 3 * d]
    assert up(FAFED(0.05), Wire("topk", share=0.05)) == [opening + 2 * 40 + d, 2 * 40 + d]
    assert up(FAFED(0.05, v_bits=8), Wire("bf16")) == [opening - 7 * d + 5 * d, 5 * d]


def test_squares_are_never_negative():
    p = Problem(4)
    for wire in WIRES:
        run = p.run(FAFED(0.05), 3, 6, wire=wire)
        for _ in run:
            assert (run.state.shared.v >= 0).all()
            assert all(len(state.owed[0]) == 2 for state in run.engine.states)  # x and m owe, v not


def test_references_make_the_messages_small():
    """Half a percent of the model would be far more than a round's move."""
    p = Problem(4)
    p.x0 = p.x0 + 1000
    close(p.xs(FAFED(0.05), 3, 4, wire=Wire("bf16")), p.xs(FAFED(0.05), 3, 4), atol=0.01)


# Refusals, and the option itself.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"up": "int4"}, "wire.up must be one of bf16, int8, topk, got 'int4'"),
        ({"up": "int8", "share": 0.1}, "wire.share = 0.1 does nothing with up = 'int8'"),
        ({"up": "topk", "share": 0}, r"wire.share must be a number in \(0, 1\], got 0"),
        ({"up": "topk", "share": 1.5}, r"wire.share must be a number in \(0, 1\], got 1.5"),
        ({"up": "topk", "error_feedback": 1}, "wire.error_feedback must be true or false, got 1"),
        ({"down": "bf16"}, "wire.down: no such setting"),
        ({"share": 0.1}, "wire.up is missing"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Wire.from_dict(settings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wire": "int8"}, "wire must be an object such as fafed.Wire"),
        ({"privacy": Privacy(secure=True)}, "wire = 'int8' cannot be had with privacy.secure"),
        (
            {"privacy": Privacy(level="client", noise=1.0, clip=1.0, delta=1e-3)},
            "wire = 'int8' cannot be had with privacy.level = 'client'",
        ),
        ({"baseline": "local"}, "wire = 'int8' does nothing in baseline = 'local'"),
    ],
)
def test_what_does_not_go_together_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Problem(4).run(FedAvg(0.05), 2, 2, **{"wire": Wire("int8"), **options})


def test_an_algorithm_that_compresses_by_itself_is_refused():
    with pytest.raises(ConfigError, match="FedCAMS compresses delta itself: leave out wire"):
        Problem(4).run(make("fedcams"), 2, 2, wire=Wire("int8"))
    identity = make("fedcams", compressor="identity")
    Problem(4).run(identity, 2, 1, wire=Wire("int8")).round()


def test_it_goes_with_privacy_of_examples():
    """What leaves has its noise already, and rounding adds nothing to what it tells."""
    noisy = Privacy(level="example", noise=1.0, clip=0.5, delta=1e-5)
    p = Problem(2, examples=40)
    run, plain = (p.run(FedAvg(0.05), 2, 2, wire=w, privacy=noisy) for w in (Wire("int8"), None))
    *_, a = run
    *_, b = plain
    assert a.diagnostics["epsilon"] == b.diagnostics["epsilon"]
    assert 0 < (run.state.shared.x - plain.state.shared.x).norm() < 0.05


def test_train_takes_the_option_and_a_folder_keeps_it(tmp_path):
    clients = [tuple(batch(12, seed=s).data) for s in range(3)]
    common = {"local_steps": 2, "batch_size": 4, "engine": "loop"}
    model, wire = torch.nn.Linear(6, 3).double(), Wire("topk", share=0.2)
    here = {**common, "folder": tmp_path / "run", "wire": wire}
    fafed.train(model, clients, FedAvg(0.1), rounds=2, **here)
    text = (tmp_path / "run" / "experiment.toml").read_text("utf-8")
    assert 'up = "topk"\nshare = 0.2' in text
    again = fafed.train(model, clients, FedAvg(0.1), rounds=4, **here)
    due = fafed.train(model, clients, FedAvg(0.1), rounds=4, wire=wire, **common)
    assert torch.equal(again.x, due.x)
    with pytest.raises(ConfigError, match="wire"):
        fafed.train(model, clients, FedAvg(0.1), rounds=4, **here | {"wire": Wire("int8")})
    assert Wire.from_dict(wire.to_dict()) == wire


def test_integers_and_single_numbers_are_sent_as_they_are():
    assert not tree.leaves(Problem(3).run(FedAvg(0.05), 1, 1).engine.nothing_owed)
