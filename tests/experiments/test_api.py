"""The call people use, from end to end."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from calls import COMMON, Late, clients, net
from problem import Problem
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import fafed
from fafed.engines import states
from fafed.engines.base import Snapshot
from fafed.kernels.build import available
from fafed.models import build as build_model

COMPILER = available(torch.float32)
ENGINES = ("loop", "vmap", "native") if COMPILER else ("loop", "vmap")


SIX = ("fedavg", "scaffold", "fedadam", "stem", "naive", "fafed")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float64) for name in fafed.ALGORITHMS] + [(name, torch.float32) for name in SIX],
)
def test_the_papers_cnn_agrees_in_all_engines(name, dtype):
    """20 clients of Fashion-MNIST-shaped data; 1e-4 in float32, 1e-10 in float64."""
    algorithm = fafed.ALGORITHMS[name]()
    g = torch.Generator().manual_seed(0)
    shards = [
        (
            torch.randn(12, 1, 28, 28, generator=g).to(dtype),
            torch.randint(0, 10, (12,), generator=g),
        )
        for _ in range(algorithm.population or 20)
    ]
    model = build_model("fashion-cnn", seed=0).to(dtype)
    loop, *others = (
        fafed.train(
            model,
            shards,
            algorithm,
            rounds=2,
            local_steps=2,
            batch_size=4,
            engine=engine,
        )
        for engine in ENGINES
    )
    assert loop.x.dtype == dtype
    for other in others:
        error = float((loop.x - other.x).norm() / loop.x.norm())
        # naive divides by its own sqrt(v): where gradients vanish, rounding becomes a whole step
        single = 1e-3 if name == "naive" else 1e-4
        double = 1e-6 if name == "fedpac" else 1e-10  # an eigenbasis is not continuous
        assert error < (single if dtype == torch.float32 else double)


def test_the_call_in_the_readme():
    shards = clients()
    result = fafed.train(
        net(),
        clients=[TensorDataset(*s) for s in shards],
        algorithm=fafed.FAFED(eta=0.01, alpha=0.1, beta=0.9, rho=0.01),
        rounds=20,
        local_steps=5,
        batch_size=10,
        loss=F.cross_entropy,
        test=shards[0],
        metrics={"accuracy": fafed.metrics.accuracy},
        seed=0,
        engine="auto",
    )
    assert isinstance(result.model, nn.Module)
    assert len(result.history) == 20
    last = result.history[-1]
    assert last.train_loss < result.history[0].train_loss
    assert last.test["accuracy"] == float(
        (result.model(shards[0][0]).argmax(-1) == shards[0][1]).double().mean()
    )
    assert last.test["loss"] == pytest.approx(
        F.cross_entropy(result.model(shards[0][0]), shards[0][1]).item(), rel=1e-5
    )
    frame = result.history.to_pandas()
    assert list(frame["round"]) == list(range(1, 21))
    assert {"test_accuracy", "m_norm", "adaptive_fraction"} <= set(frame.columns)


def test_batch_size_full_uses_the_whole_data_in_order():
    shards = clients(size=7)
    full = fafed.train(net(), shards, fafed.FAFED(), rounds=2, local_steps=3, batch_size="full")
    assert full.history[-1].samples == 4 * 7 * (1 + 2 * 3 * 2)  # the opening is full, too
    assert full.history[-1].gradients == 4 * (1 + 2 * 3 * 2)


def test_unequal_clients_with_full_batches_run_in_the_loop():
    shards = [clients(1, size)[0] for size in (5, 9)]
    common = {"rounds": 1, "local_steps": 2, "batch_size": "full"}
    assert fafed.train(net(), shards, fafed.FedAvg(), **common).engine == "loop"
    with pytest.raises(fafed.ConfigError, match="batches differ in size"):
        fafed.train(net(), shards, fafed.FedAvg(), **common, engine="vmap")


def test_float32_data_suits_a_float64_model():
    result = fafed.train(net(torch.float64), clients(), fafed.FedAvg(), **COMMON)
    assert result.x.dtype == torch.float64


def test_weights_by_examples():
    small, large = clients(2, 10)[0], clients(2, 30)[1]
    common = {"rounds": 1, "local_steps": 2, "batch_size": "full"}
    even = fafed.train(net(), [small, large], fafed.FedAvg(0.1), **common)
    sized = fafed.train(net(), [small, large], fafed.FedAvg(0.1), **common, weights="examples")
    alone = [fafed.train(net(), [s], fafed.FedAvg(0.1), **common).x for s in (small, large)]
    torch.testing.assert_close(even.x, (alone[0] + alone[1]) / 2)
    torch.testing.assert_close(sized.x, (alone[0] + 3 * alone[1]) / 4)


@pytest.mark.skipif(not COMPILER, reason="needs a C compiler")
def test_plain_small_networks_run_in_c_where_there_is_a_compiler(monkeypatch):
    train = partial(fafed.train, net(), clients(), fafed.FedAvg(), **COMMON)
    fast = train()
    assert fast.engine == "native"
    monkeypatch.setenv("CC", "no-such-compiler")
    slow = train()
    assert slow.engine == "vmap"
    torch.testing.assert_close(fast.x, slow.x)
    with pytest.raises(fafed.ConfigError, match="'no-such-compiler' does not compile C"):
        train(engine="native")
    with pytest.raises(fafed.ConfigError, match="not one of the plain small networks"):
        fafed.train(
            nn.Sequential(nn.Linear(6, 3), nn.GELU()),
            clients(),
            fafed.FedAvg(),
            **COMMON,
            engine="native",
        )


def test_small_gradients_run_side_by_side_and_large_ones_do_not():
    smooth = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))  # not one that is in C
    assert fafed.train(smooth, clients(), fafed.FedAvg(), **COMMON).engine == "vmap"
    assert fafed.train(smooth, clients(1), fafed.FedAvg(), **COMMON).engine == "loop"
    wide = nn.Sequential(nn.Linear(6, 3000), nn.GELU(), nn.Linear(3000, 3000), nn.Linear(3000, 3))
    result = fafed.train(wide, clients(2), fafed.FedAvg(), rounds=1, local_steps=1, batch_size=5)
    assert result.engine == "loop"


def test_evaluation_on_a_schedule_always_measures_the_last_round():
    result = fafed.train(
        net(), clients(), fafed.FedAvg(), rounds=5, test=clients()[0], eval_every=2, batch_size=5
    )
    assert [bool(r.test) for r in result.history] == [False, True, False, True, True]


def test_output_can_be_a_random_or_the_best_round():
    common = {**COMMON, "rounds": 12, "eval_every": 3}
    shards = clients()
    xs = [
        fafed.train(net(), shards, fafed.FedAvg(0.1), **{**COMMON, "rounds": r}).x
        for r in range(1, 13)
    ]

    def where(**options):
        x = fafed.train(net(), shards, fafed.FedAvg(0.1), **common, **options).x
        return next(r for r, here in enumerate(xs, start=1) if torch.equal(here, x))

    assert where() == 12
    found = {where(output="random_round", seed=0)}
    assert found == {where(output="random_round", seed=0)}
    odd = (shards[0][0], 2 - shards[0][1])  # what the clients learn makes this one worse
    result = fafed.train(
        net(), shards, fafed.FedAvg(0.1), **common, output="best_val", validation=odd
    )
    best = min((r for r in result.history if r.validation), key=lambda r: r.validation["loss"])
    assert torch.equal(result.x, xs[best.round - 1])
    assert best.round < 12
    with pytest.raises(fafed.ConfigError, match="give validation="):
        fafed.train(net(), shards, fafed.FedAvg(), **common, output="best_val")
    with pytest.raises(fafed.ConfigError, match="output must be"):
        fafed.train(net(), shards, fafed.FedAvg(), **common, output="first")


def test_random_rounds_are_uniform():
    """The rule that keeps a round, over many seeds."""
    from fafed.core import randomness

    kept = []
    for seed in range(3000):
        chosen = 0
        for r in range(1, 5):
            if float(randomness.uniform(randomness.keys("output", seed, r))) * r < 1:
                chosen = r
        kept.append(chosen)
    for r in range(1, 5):
        assert kept.count(r) == pytest.approx(750, abs=100)


def test_counts_grow_and_failures_cost_the_downlink():
    result = fafed.train(net(), clients(), fafed.FedAvg(), rounds=6, batch_size=5, failure=0.5)
    vector = result.x.numel() * 4
    answered = [r.clients for r in result.history]
    assert min([*answered, 4]) > 0
    assert max(answered) <= 4
    assert len(set(answered)) > 1
    assert result.history[-1].bytes_up == sum(answered) * vector
    invited = sum(4 for n in answered if n)  # a round that nobody answers costs nothing here
    assert result.history[-1].bytes_down == invited * vector


def test_a_round_that_nobody_answers_changes_nothing():
    result = fafed.train(
        net(), clients(1), fafed.FAFED(), rounds=8, batch_size=5, failure=0.7, seed=1
    )
    silent = [r for r in result.history if r.clients == 0]
    assert silent
    assert all(r.train_loss is None for r in silent)


@pytest.mark.parametrize("engine", ENGINES)
def test_divergence_names_client_and_round_and_keeps_the_last_good_state(engine, monkeypatch):
    monkeypatch.setattr("fafed.training.build.check_numbers", lambda *_: None)  # refused before
    shards = clients()
    shards[2][0][:] = torch.inf
    with pytest.raises(fafed.Diverged, match=r"round 1: client 2 produced a non-finite loss") as e:
        fafed.train(net(), shards, fafed.FedAvg(), **COMMON, engine=engine)
    assert e.value.client == 2
    assert torch.equal(e.value.x, fafed.Model(net(), F.cross_entropy).x0)

    good = fafed.train(net(), clients(), fafed.FedAvg(1.0), **COMMON)
    with pytest.raises(fafed.Diverged, match="try a smaller eta") as e:
        fafed.train(
            net(), clients(), fafed.FedAvg(Late()), **{**COMMON, "rounds": 9}, engine=engine
        )
    assert e.value.round == 4
    assert len(e.value.history) == 3
    torch.testing.assert_close(e.value.x, good.x)
    assert math.isfinite(e.value.history[-1].train_loss)


@pytest.mark.parametrize("name", ["fafed", "mime"])
def test_a_round_that_fails_in_its_second_exchange_can_be_tried_again(name):
    """What the first exchange left with the clients is taken back."""
    p = Problem(3)
    run, twin = (p.run(fafed.ALGORITHMS[name](eta=0.05), 2, 3) for _ in range(2))
    deliver, calls = run.engine.deliver, []

    def breaking(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return deliver(*arguments)

    run.engine.deliver = breaking
    with pytest.raises(KeyboardInterrupt):
        run.round()
    assert run.state.round == 0
    assert run.engine.states == [None] * 3
    list(run)
    list(twin)
    assert torch.equal(run.state.shared.x, twin.state.shared.x)


@pytest.mark.parametrize("name", ["fafed", "scaffold"])
def test_a_round_that_fails_at_the_server_can_be_tried_again(name, monkeypatch):
    p = Problem(3)
    run, twin = (p.run(fafed.ALGORITHMS[name](eta=0.05), 3, 3) for _ in range(2))
    run.round()
    before = run.state
    with monkeypatch.context() as broken:
        of_class = type(run.algorithm)
        exchanges = of_class.exchanges

        def interrupt(*_):
            raise KeyboardInterrupt

        broken.setattr(
            of_class,
            "exchanges",
            lambda self: tuple(e._replace(server=interrupt) for e in exchanges(self)),
        )
        with pytest.raises(KeyboardInterrupt):
            run.round()
    assert run.state is before
    list(run)
    list(twin)
    assert torch.equal(run.state.shared.x, twin.state.shared.x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fafed", "stem", "localamsgrad"])
def test_the_opening_waits_for_somebody_to_answer(name, engine):
    found = fafed.train(
        net(),
        clients(1),
        fafed.ALGORITHMS[name](),
        **COMMON | {"rounds": 6},
        failure=0.6,
        seed=0,
        engine=engine,
    )
    assert found.history[0].clients == 0
    assert sum(record.clients for record in found.history) > 1
    assert found.x.isfinite().all()
    assert all(
        math.isfinite(value) for record in found.history for value in record.diagnostics.values()
    )


def test_states_too_large_to_be_held_twice(monkeypatch):
    """A round is the same, but one that fails half-way ends the run."""
    p = Problem(3)
    small = p.run(fafed.FAFED(eta=0.05), 2, 3)
    monkeypatch.setattr(states, "UNDO_BYTES", 0)
    large = p.run(fafed.FAFED(eta=0.05), 2, 3)
    for run in (small, large):
        list(run)
    assert torch.equal(large.state.shared.x, small.state.shared.x)

    run = p.run(fafed.FAFED(eta=0.05), 3, 3, engine="loop")  # a client at a time
    run.round()
    before = run.engine.states
    p.pool[1][p.parts[2]] = torch.nan  # the last client's
    with pytest.raises(fafed.Diverged):
        run.round()
    with pytest.raises(fafed.FafedError, match="go on from a checkpoint"):
        run.round()
    with pytest.raises(fafed.FafedError, match="go on from a checkpoint"):
        _ = run.engine.states
    run.engine.restore(Snapshot(before, {}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "resnet"}, "model must be an nn.Module"),
        ({"algorithm": "fafed"}, "algorithm must be an object such as"),
        ({"algorithm": fafed.FAFED}, "algorithm must be an object such as"),
        ({"rounds": 0}, "rounds must be a positive integer"),
        ({"local_steps": 2.5}, "local_steps must be a positive integer"),
        ({"engine": "fast"}, "engine must be one of 'auto', 'loop', 'vmap'"),
        ({"weights": "size"}, "weights must be 'uniform', 'examples' or 4 positive numbers"),
        ({"weights": [1, 2]}, "4 positive numbers"),
        ({"participation": []}, "empty schedule"),
        ({"participation": [[0, 9]]}, "0..3"),
        ({"loss": "ce"}, "loss must be a function"),
        ({"clip": 0}, "clip must be a number > 0"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"test": (torch.zeros(3, 5), torch.zeros(3).long())}, r"test: an example is \(5,\)"),
        ({"test": (torch.zeros(0, 6), torch.zeros(0).long())}, "test: it has no examples"),
        (
            {"test": (torch.zeros(3, 6).byte(), torch.zeros(3).long())},
            r"test: it holds torch\.uint8, the clients' data torch\.float32",
        ),
        (
            {"validation": (torch.zeros(3, 6), torch.tensor([0, 2, 3]))},
            r"validation has the label 3, but the model has 3 outputs",
        ),
        ({"device": "gpu"}, "device 'gpu' cannot be used: .* try 'cpu'"),
        (
            {"clients": [*clients(2), (torch.zeros(40, 6), torch.arange(40) // 39 * 7)]},
            r"client 2 has the label 7, but the model has 3 outputs: labels must be 0 to 2",
        ),
    ],
)
def test_wrong_calls_are_refused_with_the_cure(change, words):
    call = {
        "model": net(),
        "clients": clients(),
        "algorithm": fafed.FedAvg(),
        "rounds": 1,
        "local_steps": 2,
        "batch_size": 5,
    }
    with pytest.raises(fafed.FafedError, match=words):
        fafed.train(**call | change)


def test_a_wide_message_is_checked_too():
    class Wild(fafed.Algorithm):
        def init(self, x):
            return fafed.FedAvg().init(x)

        def local(self, grad, down, local, batches):
            for batch in batches:
                grad(down.x, batch)
            return local, (down.x * torch.inf,)

        def server(self, shared, mean, info):
            return shared

        def __new__(cls):
            return object.__new__(cls)

    with pytest.raises(fafed.Diverged, match="non-finite message"):
        fafed.train(net(), clients(), Wild(), **COMMON)


def test_metrics_without_data_are_not_passed_over(caplog):
    metrics = {"accuracy": fafed.metrics.accuracy}
    options = {"rounds": 1, "metrics": metrics}
    fafed.start(net(), clients(), fafed.FedAvg(), **options, client_test=0.2)
    assert "metrics are not computed" not in caplog.text
    fafed.start(net(), clients(), fafed.FedAvg(), **options)
    assert "metrics are not computed" in caplog.text


def test_data_and_models_are_there_without_another_import():
    """As the documentation uses them. In this process they may be there already."""
    code = "import fafed; print(fafed.data.from_folder, fafed.models.MLP)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
