"""Runs that are private for every client: clipped messages, noise on their sum, in simulation."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting as dp
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from problem import Problem, close
from torch import nn
from torch.nn import functional as F

from fafed import ALGORITHMS, FAFED, SCAFFOLD, ConfigError, FedAvg, Mime, Privacy
from fafed.data.sources.examples import examples_of
from fafed.engines.answered import Answers
from fafed.engines.private_mean import PrivateMean, visit_without_data
from fafed.experiments import checkpoint
from fafed.objectives.function import Function
from fafed.objectives.module import Model
from fafed.privacy.accounting import ORDERS
from fafed.privacy.clients import ClientNoise
from fafed.training.build import build

DELTA = 1e-3


def private(**changes):
    return Privacy(**{"level": "client", "noise": 1.0, "clip": 0.1, "delta": DELTA} | changes)


def started(algorithm=None, *, N=8, rounds=3, **options):
    options = {"privacy": private()} | options
    return Problem(N).run(algorithm or FedAvg(0.1), 2, rounds, **options)


def seen(run, monkeypatch):
    """What the server gets in each exchange."""
    found = []
    deliver = type(run.engine).deliver

    def watched(engine, *arguments):
        found.append(deliver(engine, *arguments))
        return found[-1]

    monkeypatch.setattr(type(run.engine), "deliver", watched)
    list(run)
    return list(found)


def federated():
    made = {name: kind() for name, kind in ALGORITHMS.items()}
    return [pytest.param(a, id=name) for name, a in made.items() if a.population is None]


def small_noise(**changes):
    return private(**{"noise": 1e-9, "clip": 1e6} | changes)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("algorithm", federated())
def test_without_noise_and_clipping_it_is_the_plain_run(algorithm, secure):
    """Every algorithm: the private mean of unclipped messages with almost no noise is the mean."""
    N = 4
    plain = Problem(N).run(algorithm, 2, 2)
    list(plain)
    run = Problem(N).run(algorithm, 2, 2, privacy=small_noise(secure=secure, noise=1e-15))
    list(run)
    close(run.state.shared.x, plain.state.shared.x, atol=1e-5)


def test_messages_are_clipped_as_one_vector(monkeypatch):
    """By hand: the messages of a plain run, their differences from one without data, clipped."""
    algorithm, N = FAFED(0.1), 5
    factors = {"m": 0.5, "v": 2.0}
    run = started(algorithm, N=N, rounds=1, privacy=private(noise=1e-12, factors=factors))
    replies = seen(run, monkeypatch)
    plain = Problem(N).run(algorithm, 2, 1)
    bound, engine, buffers = plain.algorithm, plain.engine, ()
    shared = bound.init(Problem(N).x0)
    for exchange, reply in zip((*bound.opening(), *bound.exchanges()), replies, strict=True):
        down = exchange.send(shared)
        start = visit_without_data(exchange, down, bound.join(down.x), 2)[1]
        total = [torch.zeros_like(leaf) for leaf in start]
        cut = 0
        for client in range(N):
            found = engine.deliver(exchange, shared, buffers, (client,), 0, True)
            own = [
                (leaf - ref) / factors.get(name, 1.0)
                for name, leaf, ref in zip(start._fields, found.mean, start, strict=True)
            ]
            norm = math.sqrt(sum(float(leaf.square().sum()) for leaf in own))
            cut += norm > 0.1
            for name, into, leaf in zip(start._fields, total, own, strict=True):
                into += min(1.0, 0.1 / norm) * leaf * factors.get(name, 1.0)
        assert cut
        due = [ref + leaf / N for ref, leaf in zip(start, total, strict=True)]
        if "v" in start._fields:
            due[start._fields.index("v")].clamp_(min=0)
        for leaf, ours in zip(due, reply.mean, strict=True):
            close(ours, leaf, atol=1e-9)
        shared = exchange.server(shared, reply.mean, reply.info)


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_on_the_mean(secure, monkeypatch):
    """Its size, and that it is new in every leaf, round and exchange. With a step size of almost
    zero, messages are almost nothing."""
    N, d = 6, 4000
    clients = [(torch.zeros(4, 1), torch.zeros(4)) for _ in range(N)]
    run = build(
        SCAFFOLD(1e-12, wire="full"),
        Function(lambda x, data: 0 * x.sum(), torch.zeros(d, dtype=torch.float64)),
        examples_of(clients, batch_size=2),
        rounds=2,
        local_steps=1,
        engine="loop",
        privacy=private(noise=3.0, clip=0.5, secure=secure, factors={"dy": 0.1}),
    )
    replies = seen(run, monkeypatch)
    # by the server: noise * clip / N. In shares: enough of them for the quorum, 5 of 6
    deviation = 3.0 * 0.5 / N * (math.sqrt(6 / 5) if secure else 1.0)
    found = torch.stack(
        [leaf / f for r in replies for leaf, f in zip(r.mean, (0.1, 1.0), strict=True)]
    )
    assert found.shape == (4, d)
    assert (found.std(1) / deviation - 1).abs().max() < 5 / math.sqrt(2 * d)
    assert found.mean(1).abs().max() < 5 * deviation / math.sqrt(d)
    others = torch.corrcoef(found) - torch.eye(4, dtype=torch.float64)
    assert others.abs().max() < 5 / math.sqrt(d)


@pytest.mark.parametrize(
    ("algorithm", "secure"),
    [
        (FedAvg(0.1), True),
        (FAFED(0.05), False),
        (SCAFFOLD(0.1, wire="full"), False),
        (Mime(0.1), False),
    ],
)
def test_back_ends_give_the_same_numbers(algorithm, secure):
    options = {"N": 40, "participation": 0.5, "privacy": private(secure=secure)}
    runs = [started(algorithm, engine=e, **options) for e in ("loop", "vmap")]
    for run in runs:
        list(run)
    close(runs[0].state.shared.x, runs[1].state.shared.x, atol=1e-10)
    plain = Problem(40).run(algorithm, 2, 3)
    list(plain)
    assert not torch.allclose(plain.state.shared.x, runs[0].state.shared.x, atol=1e-4)


def test_native_gives_the_numbers_of_the_loop():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    g = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(20, 6, generator=g), torch.randint(0, 3, (20,), generator=g)) for _ in range(6)
    ]
    found = []
    for engine in ("loop", "native"):
        source = examples_of(clients, batch_size=5)
        options = {"rounds": 2, "local_steps": 2, "engine": engine, "privacy": private()}
        run = build(FedAvg(0.1), Model(module, F.cross_entropy), source, **options)
        list(run)
        found.append(run.state.shared.x)
    close(*found, atol=1e-6)


def test_cohorts_are_poisson_samples_and_the_sum_is_divided_by_their_expected_size():
    run = started(N=200, rounds=300, participation=0.25)
    sizes = torch.tensor([len(run.cohort.invited(r)) for r in range(1, 301)]).double()
    assert abs(float(sizes.mean()) - 50) < 5 * math.sqrt(200 * 0.25 * 0.75 / 300)
    assert float(sizes.var()) == pytest.approx(200 * 0.25 * 0.75, rel=0.4)
    assert run.engine.noise.expected == 50
    record = run.round()
    assert record.clients == sizes[0] != 50
    assert record.train_loss is None


def test_a_small_cohort_is_divided_by_the_expected_size_too():
    run = started(N=40, rounds=1, participation=0.5, privacy=small_noise(clip=100.0))
    invited = run.cohort.invited(1)
    assert len(invited) != 20
    list(run)
    plain = Problem(40).run(FedAvg(0.1), 2, 1, participation=[list(invited)])
    list(plain)
    moved, due = (r.state.shared.x - Problem(40).x0 for r in (run, plain))
    close(moved, due * len(invited) / 20, atol=1e-8)
    assert not torch.allclose(moved, due, atol=1e-4)


def by_hand(rate, noise, times):
    found = RdpAccountant(ORDERS)
    event = dp.GaussianDpEvent(noise)
    found.compose(event if rate == 1 else dp.PoissonSampledDpEvent(rate, event), times)
    return found.get_epsilon(DELTA)


def test_epsilon_counts_every_exchange():
    run = started(FedAvg(0.1), N=40, participation=0.5)
    assert [r.diagnostics["epsilon"] for r in run] == pytest.approx(
        [by_hand(0.5, 1.0, r) for r in (1, 2, 3)], rel=1e-9
    )
    everyone = started(Mime(0.1)).budget.accountant  # two exchanges in each round
    assert everyone.epsilon(3) == pytest.approx(by_hand(1, 1 / math.sqrt(2), 3), rel=1e-9)
    opening = started(FAFED(0.1)).budget.accountant  # two in the first
    assert opening.epsilon(1) == pytest.approx(by_hand(1, 1 / math.sqrt(2), 1), rel=1e-9)


@pytest.mark.parametrize("secure", [False, True])
def test_a_resumed_run_goes_on_and_stops_in_time(secure, tmp_path, caplog):
    whole = started(N=40, rounds=4, participation=0.5, privacy=private(secure=secure))
    spent = [record.diagnostics["epsilon"] for record in whole]
    options = {"N": 40, "rounds": 4, "participation": 0.5}
    options["privacy"] = private(secure=secure, max_epsilon=spent[2] * 1.0001)
    run = started(**options)
    run.round()
    path = checkpoint.save(run, tmp_path, "d")
    list(run)
    again = started(**options)
    checkpoint.load(again, path, "d")
    assert [record.diagnostics["epsilon"] for record in again] == spent[1:3]
    assert torch.equal(again.state.shared.x, run.state.shared.x)
    assert "stopped after round 3 of 4: one more would pass max_epsilon" in caplog.text


def test_a_client_that_scales_or_flips_its_message_is_bounded():
    """Whatever one client sends, it moves the mean by at most 2 clip / N. Without a bound it moves
    the model as far as it likes."""
    N, d = 10, 5
    g = torch.Generator().manual_seed(0)
    honest = torch.randn(N, d, generator=g, dtype=torch.float64)
    rule = ClientNoise(1.0, 1.0, 1.0, N, {}, False, 0)

    def mean(rows):
        own = PrivateMean(rule, (torch.zeros(d).double(),), (), N, "k")
        sent = (torch.stack(list(rows)),), ()
        own.answer(Answers(range(N), sent, torch.zeros(N), torch.zeros(N), 1, 1))
        ((found,), _) = own.value()
        return found

    due = mean(honest)
    for bad in (1e9 * honest[0], -honest[0], -1e9 * honest[0], torch.zeros(d).double()):
        found = mean([bad, *honest[1:]])
        assert float((found - due).norm()) <= 2 * 1.0 / N + 1e-12
        plain = torch.stack([bad, *honest[1:]]).mean(0)
        assert float(bad.norm()) < 1e8 or float((plain - honest.mean(0)).norm()) > 1e7


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    def forward(self, x):
        return self.inner(x)


def with_buffers():
    clients = [(torch.randn(20, 6), torch.randint(0, 3, (20,))) for _ in range(6)]
    return build(
        FedAvg(0.1),
        Model(Buffered(), F.cross_entropy),
        examples_of(clients, batch_size=5),
        rounds=1,
        local_steps=1,
        privacy=private(),
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (with_buffers, "BatchNorm's statistics.*use nn.GroupNorm"),
        (lambda: started(participation=[[0, 1], [2, 3]]), "participation must be a number"),
        (lambda: started(N=4, weights=[1, 2, 3, 4]), "use weights = 'uniform'"),
        (lambda: started(privacy=private(delta=0.2)), "promises nothing to one of 8 clients"),
        (lambda: started(participation=0.5), "fewer than 1 with probability 0.004"),
        (lambda: started(privacy=private(max_epsilon=0.01)), "less than one round costs"),
        (lambda: private(delta=None), "privacy.level = 'client' needs privacy.delta"),
        (lambda: private(combine=True), "privacy.combine does nothing with privacy.level = 'cli"),
        (lambda: private(factors={"m": 0}), "privacy.factors.m must be > 0, got 0.0"),
        (lambda: private(factors=2), "privacy.factors must be a table, got 2"),
        (
            lambda: started(privacy=private(factors={"m": 2.0})),
            "privacy.factors.m: the messages have no such part; they have delta",
        ),
    ],
)
def test_what_cannot_be_promised_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_settings_survive_a_dictionary():
    given = private(factors={"m": 0.5}, secure=True)
    assert Privacy.from_dict(given.to_dict()) == given
    assert dataclasses.replace(given, noise=2.0).noise == 2.0


def test_a_bound_on_norms_does_not_stop_wrong_labels():
    """A client with wrong labels sends a message of an honest length. Clipping lets all of it
    through, and the model is that of the wrong labels."""
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 6, generator=g, dtype=torch.float64)
    labels = (inputs[:, 0] > 0).long()

    def loss_with(bad):
        clients = [
            (inputs[i::10], labels[i::10] if i >= bad else 1 - labels[i::10]) for i in range(10)
        ]
        source = examples_of(clients, batch_size=10)
        torch.manual_seed(0)
        goal = Model(nn.Linear(6, 2).double(), F.cross_entropy)
        privacy = Privacy(level="client", noise=1e-6, clip=0.05, delta=1e-3)
        run = build(FedAvg(0.5), goal, source, rounds=20, local_steps=2, privacy=privacy)
        list(run)
        weight, bias = run.state.shared.x[:12].view(2, 6), run.state.shared.x[12:]
        return float(F.cross_entropy(inputs @ weight.T + bias, labels))

    honest, few, many = (loss_with(bad) for bad in (0, 3, 7))
    assert honest < few - 0.1
    assert many > 0.7 > few  # worse than a guess: the majority decides
