"""Messages as integers in simulation: the numbers of secure aggregation, to the last bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from modules import Assigned, InPlace, batch
from problem import Problem, close
from secure_silos import exchange, make_server, names, silos
from torch.nn import functional as F

import fafed
from fafed import ALGORITHMS, SCAFFOLD, ConfigError, FedAvg, Mime
from fafed.core import tree
from fafed.data.sources.examples import examples_of
from fafed.engines.encoded import EncodedMean
from fafed.experiments import checkpoint
from fafed.objectives.module import Model
from fafed.privacy.options import Privacy
from fafed.training.build import build
from fafed.training.loop import Absent

SECURE = Privacy(secure=True)


def make(name, **more):
    fields = {f.name for f in dataclasses.fields(ALGORITHMS[name])}
    common = {"eta": 0.05, "rho": 0.1} | more
    return ALGORITHMS[name](**{k: v for k, v in common.items() if k in fields})


federated = pytest.mark.parametrize("name", [n for n in ALGORITHMS if not make(n).population])


def flat(record):
    return {**record.flat(), "seconds": 0.0, "bytes_up": 0}


@federated
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_the_encoding_changes_only_far_digits(name, engine):
    p = Problem(5, weights=[1.0, 0.2, 3.0, 0.7, 5.0])
    open_run = p.run(make(name), 3, 4, engine=engine)
    secure = p.run(make(name), 3, 4, engine=engine, privacy=SECURE)
    for a, b in zip(open_run, secure, strict=True):
        assert flat(b) == pytest.approx(flat(a), rel=1e-6)
        assert (a.samples, a.gradients, a.clients) == (b.samples, b.gradients, b.clients)
    close(secure.state.shared.x, open_run.state.shared.x, atol=1e-6)


@federated
def test_the_order_of_clients_does_not_change_a_bit(name):
    p = Problem(5, b="full", B="full")
    here = p.xs(make(name), 3, 4, privacy=SECURE)
    p.parts = [p.parts[i] for i in (2, 4, 0, 3, 1)]
    assert torch.equal(p.xs(make(name), 3, 4, privacy=SECURE), here)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("privacy", [SECURE, Privacy(secure=True, bits=32)])
def test_the_number_of_workers_does_not_change_a_bit(engine, privacy):
    p, options = Problem(6), {"engine": engine, "privacy": privacy}
    one, two = (p.xs(make("mime"), 3, 3, workers=w, **options) for w in (1, 2))
    assert torch.equal(one, two)


def test_small_units_are_the_same_in_32_bits_up_to_their_size():
    p = Problem(5)
    rough = Privacy(secure=True, bits=32, first_bound=8.0)
    found, due = p.xs(make("fedavg"), 3, 4, privacy=rough), p.xs(make("fedavg"), 3, 4)
    assert 0 < (found - due).abs().max() < 1e-4


def test_silos_under_masks_get_the_sum_of_the_simulation(monkeypatch):
    """Each client's integers, sent through the protocol, add up to what the simulation adds."""
    count, alone, summed = 4, [], []
    answer, finish = EncodedMean.answer, EncodedMean.read

    def noting(self, answers):
        answer(self, answers)
        alone.append(torch.cat(tree.leaves(self.total)).numpy().view(np.uint64).copy())

    def reading(self, counts, clients):
        sizes = [len(total) for total in tree.leaves(self.total)]
        summed.append((torch.cat(tree.leaves(self.total)).numpy().view(np.uint64).copy(), sizes))
        return finish(self, counts, clients)

    monkeypatch.setattr(EncodedMean, "answer", noting)
    monkeypatch.setattr(EncodedMean, "read", reading)
    Problem(count).run(make("fafed"), 2, 1, privacy=SECURE).round()
    for k, (total, sizes) in enumerate(summed):
        data = dict(zip(names(count), alone[k * count : (k + 1) * count], strict=True))
        found = exchange(silos(count), make_server(count, sizes), data)
        assert np.array_equal(found.total, total)


def test_bytes_are_those_of_the_integers():
    p = Problem(4)
    record = p.run(FedAvg(0.05), 2, 1, privacy=SECURE).round()
    numbers = (p.d + 1) + 2 + 2 + 6  # delta, loss, whether there is one, counts; with their largest
    assert record.bytes_up == 4 * 8 * numbers
    rough = p.run(FedAvg(0.05), 2, 1, privacy=Privacy(secure=True, bits=32)).round()
    assert rough.bytes_up == record.bytes_up // 2


# Numbers beyond their bounds.


def test_a_client_beyond_the_bound_is_absent_and_the_bound_grows():
    p = Problem(5)
    run = p.run(FedAvg(0.05), 2, 6, privacy=SECURE)
    run.round()
    name = "round 0.message.delta"
    known = run.engine.encoded.bounds.known
    before = known[name]
    run.engine.encoded.pending.known[name] = before - 6  # too small for most of them
    answered = [record.clients for record in run]
    assert answered[0] == 0
    assert answered[-1] == 5
    assert run.engine.encoded.bounds.known[name] in (before - 1, before, before + 1)


def test_one_client_beyond_the_bound_leaves_the_others_in_the_sum():
    """The others answer, as if that one had been absent."""
    p = Problem(6)
    sizes = [float(p.g(i, 1, p.x0).abs().max()) for i in range(6)]
    *_, second, largest = sorted(sizes)
    eta = 8 / (second * largest) ** 0.5  # the largest update is beyond 8, the others are not
    run = p.run(FedAvg(eta), 1, 1, privacy=Privacy(secure=True, first_bound=8.0))
    assert run.round().clients == 5
    due = p.run(FedAvg(eta), 1, 1, participation=[[i for i in range(6) if sizes[i] < largest]])
    due.round()
    close(run.state.shared.x, due.state.shared.x, atol=1e-8)


def test_an_algorithm_that_needs_all_clients_makes_the_exchange_again():
    p, algorithm = Problem(4), SCAFFOLD(0.05)
    assert algorithm.requires_all_clients
    found = p.xs(algorithm, 3, 3, privacy=Privacy(secure=True, first_bound=2.0**-9))
    close(found, p.xs(algorithm, 3, 3), atol=1e-8)
    hopeless = Privacy(secure=True, first_bound=1e-30, headroom=2.0)
    with pytest.raises(Absent, match="round 1: 0 of 4 clients have answered within the bounds"):
        p.run(algorithm, 3, 3, privacy=hopeless).round()


def test_clients_beyond_the_bound_keep_their_old_state():
    p = Problem(4)
    run = p.run(SCAFFOLD(0.05, wire="full"), 2, 1, privacy=Privacy(secure=True, first_bound=1e-9))
    record = run.round()
    assert (record.clients, record.samples, record.train_loss) == (0, 0, None)
    assert run.engine.states == [None] * 4


def test_a_client_lost_in_the_second_exchange_is_left_out_of_the_round():
    p = Problem(5)
    run = p.run(Mime(0.05), 2, 3, privacy=SECURE)
    run.round()
    known = run.engine.encoded.pending.known
    key = max(k for k in known if k.startswith("round 1.message"))
    known[key] -= 30
    assert run.round().clients == 0
    assert run.round().clients in (0, 5)


def test_nothing_of_a_failed_round_stays():
    p = Problem(4)
    run = p.run(make("fedavg"), 2, 3, privacy=SECURE)
    run.round()
    bounds = dict(run.engine.encoded.bounds.known)
    f, run.engine.objective.f = run.engine.objective.f, lambda x, data: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run.round()
    run.engine.objective.f = f
    assert run.engine.encoded.pending.known == bounds
    list(run)
    assert torch.equal(run.state.shared.x, p.xs(make("fedavg"), 2, 3, privacy=SECURE)[-1])


# Checkpoints, buffers, losses, refusals.


@pytest.mark.parametrize("name", ["fafed", "mime", "fedavg"])
def test_a_resumed_run_has_the_same_bits(name, tmp_path):
    p = Problem(4)
    run = p.run(make(name), 2, 5, privacy=SECURE)
    for _ in range(2):
        run.round()
    path = checkpoint.save(run, tmp_path, "d")
    list(run)
    again = p.run(make(name), 2, 5, privacy=SECURE)
    checkpoint.load(again, path, "d")
    list(again)
    assert torch.equal(again.state.shared.x, run.state.shared.x)


@pytest.mark.parametrize("module", [Assigned, InPlace])
def test_buffers_are_encoded_too(module):
    """Also a count that begins beyond first_bound, as in a model that was trained before."""

    def trained(**options):
        own = module()
        own.n += 10**6
        clients = [tuple(batch(12, seed=s).data) for s in range(4)]
        source = examples_of(clients, batch_size=4)
        objective = Model(own, F.cross_entropy)
        run = build(FedAvg(0.1), objective, source, rounds=3, local_steps=2, **options)
        list(run)
        return run.state.buffers

    found, due = trained(privacy=SECURE, engine="loop"), trained(engine="loop")
    assert [b.dtype for b in found] == [b.dtype for b in due]
    assert int(found[0]) == int(due[0]) == 10**6 + 6
    close(found[1], due[1], atol=1e-8)


def test_clients_without_labels_do_not_count_in_the_loss():
    clients = [tuple(batch(6, seed=s).data) for s in range(4)]
    clients[1][1][1:] = -100

    def losses(**options):
        source = examples_of(clients, batch_size=2)
        objective = Model(InPlace(), F.cross_entropy)
        settings = {"rounds": 4, "local_steps": 1, "engine": "loop", **options}
        return [record.train_loss for record in build(FedAvg(0.1), objective, source, **settings)]

    assert losses(privacy=SECURE) == pytest.approx(losses(), rel=1e-8)


def test_failing_clients_below_the_quorum_are_a_round_without_anybody():
    p = Problem(6)
    open_run = p.run(FedAvg(0.05), 1, 30, failure=0.3)
    secure = p.run(FedAvg(0.05), 1, 30, failure=0.3, privacy=SECURE)
    pairs = [(a.clients, b.clients) for a, b in zip(open_run, secure, strict=True)]
    assert all(b == (a if a >= 5 else 0) for a, b in pairs)
    assert {b for _, b in pairs} >= {0, 5}


def test_fewer_than_three_clients_are_refused():
    with pytest.raises(ConfigError, match="needs at least 3 clients, round 1 has 2"):
        Problem(2).run(FedAvg(0.05), 1, 1, privacy=SECURE)
    schedule = [[0, 1, 2], [3, 4]]
    with pytest.raises(ConfigError, match="round 2 has 2"):
        Problem(5).run(FedAvg(0.05), 1, 1, participation=schedule, privacy=SECURE)


def test_train_takes_the_option():
    clients = [tuple(batch(12, seed=s).data) for s in range(3)]
    common = {"rounds": 2, "local_steps": 2, "batch_size": 4, "engine": "loop"}
    model = torch.nn.Linear(6, 3).double()
    a = fafed.train(model, clients, FedAvg(0.1), **common)
    b = fafed.train(model, clients, FedAvg(0.1), **common, privacy=fafed.Privacy(secure=True))
    assert not torch.equal(a.x, b.x)
    close(a.x, b.x, atol=1e-9)


def test_the_option_belongs_to_a_run_in_a_folder(tmp_path):
    clients = [tuple(batch(12, seed=s).data) for s in range(3)]
    common = {"local_steps": 2, "batch_size": 4, "engine": "loop", "folder": tmp_path / "run"}
    secure, model = fafed.Privacy(secure=True, bits=32), torch.nn.Linear(6, 3).double()
    fafed.train(model, clients, FedAvg(0.1), rounds=2, privacy=secure, **common)
    assert "bits = 32" in (tmp_path / "run" / "experiment.toml").read_text("utf-8")
    again = fafed.train(model, clients, FedAvg(0.1), rounds=4, privacy=secure, **common)
    common.pop("folder")
    due = fafed.train(model, clients, FedAvg(0.1), rounds=4, privacy=secure, **common)
    assert torch.equal(again.x, due.x)
    assert Privacy.from_dict(secure.to_dict()) == secure
