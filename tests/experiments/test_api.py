"""The call people use, from end to end."""

from __future__ import annotations

import inspect
import json
import math
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from problem import Problem
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import fafed
from fafed.engines import states
from fafed.engines.base import Snapshot
from fafed.experiments import python_run
from fafed.experiments.execute import execute
from fafed.experiments.python_run import checksum
from fafed.experiments.rundir import Busy, RunDir, all_runs
from fafed.files import Damaged
from fafed.kernels.build import available
from fafed.models import build as build_model


def clients(n=4, size=30, d=6, classes=3, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(classes, d, generator=g, dtype=dtype)
    found = []
    for i in range(n):
        y = torch.randint(0, 2, (size,), generator=g) + (i % (classes - 1))
        found.append((centres[y] + torch.randn(size, d, generator=g, dtype=dtype), y))
    return found


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


COMMON = {"rounds": 3, "local_steps": 4, "batch_size": 5}
COMPILER = available(torch.float32)
ENGINES = ("loop", "vmap", "native") if COMPILER else ("loop", "vmap")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", fafed.ALGORITHMS)
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
        assert error < (single if dtype == torch.float32 else 1e-10)


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
def test_divergence_names_client_and_round_and_keeps_the_last_good_state(engine):
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


class Late(fafed.schedules.Schedule):
    """1 for three rounds of four steps, then far too much."""

    def __call__(self, t):
        return torch.where(t <= 12, 1.0, torch.inf).double()


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
        ({"clip": 0}, "clip must be > 0"),
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


# A loop that the user holds, with and without a folder.


def call(folder=None, **changes):
    """The arguments of a run with buffers and with states of clients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    shards = clients()
    return {
        "model": model,
        "clients": shards,
        "algorithm": fafed.SCAFFOLD(eta=0.05),
        "rounds": 7,
        "local_steps": 2,
        "batch_size": 5,
        "test": shards[0],
        "validation": shards[1],
        "metrics": {"accuracy": fafed.metrics.accuracy},
        "seed": 3,
        "folder": folder,
    } | changes


def numbers(history):
    return [replace(record, seconds=0.0) for record in history]


def equal(one, other):
    assert torch.equal(one.x, other.x)
    assert numbers(one.history) == numbers(other.history)
    state = other.model.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in one.model.state_dict().items())
    assert not one.model.training


def stopped(run, after):
    for record in run:
        if record.round == after:
            break
    return run


def failing(run, at, error):
    for record in run:
        if record.round == at and (raised := error()):
            raise raised


def test_the_loop_is_the_users():
    whole = fafed.train(**call())
    run = fafed.start(**call())
    assert run.history == []
    for record in run:
        assert run.history[-1] is record
        x, model, result = run.x, run.model, run.result()
        if record.round == 3:
            break
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), x)
    assert [len(run.history), run.finished, run.engine] == [3, False, whole.engine]
    assert [record.round for record in run] == [4, 5, 6, 7]  # a second loop goes on
    assert list(run) == []
    assert len(result.history) == 3  # a result does not change
    assert not result.finished
    equal(run, whole)
    assert run.finished
    assert whole.finished


def test_start_and_train_agree_in_their_arguments_and_explain_each():
    start, train = (inspect.signature(f) for f in (fafed.start, fafed.train))
    assert start.parameters == train.parameters
    for name in start.parameters:
        assert re.search(rf"\b{name}\b[^\n]*:", fafed.train.__doc__.partition("Arguments")[2]), name
    assert "as FedAvg's paper does" in fafed.train.__doc__


@pytest.mark.parametrize("output", ["last", "random_round", "best_val"])
@pytest.mark.parametrize("every", [1, 4])
def test_a_run_in_a_folder_goes_on_bit_for_bit(tmp_path, output, every):
    change = {"output": output, "eval_every": 2, "checkpoint_every": every}
    whole = fafed.train(**call(**change))
    folder = tmp_path / "run"
    for after in (2, 5):
        run = stopped(fafed.start(**call(folder, **change)), after)
        assert len(run.history) == len(RunDir(folder).records()) == after
    done = fafed.train(**call(folder, **change))
    equal(done, whole)
    equal(fafed.train(**call(folder, **change)), whole)  # there is nothing left to do
    assert RunDir(folder).finished()


def test_rounds_may_be_raised_but_not_taken_back(tmp_path):
    fafed.train(**call(tmp_path, rounds=3))
    equal(fafed.train(**call(tmp_path)), fafed.train(**call()))
    with pytest.raises(fafed.ConfigError, match=r"rounds is 3, but .* has 7 finished rounds"):
        fafed.start(**call(tmp_path, rounds=3))


def test_rounds_decide_if_a_schedule_falls_over_all_of_them(tmp_path):
    falling = fafed.SCAFFOLD(eta=fafed.schedules.Linear(peak=0.1))
    fafed.train(**call(tmp_path, rounds=3, algorithm=falling))
    with pytest.raises(fafed.ConfigError, match=r"schedule of algorithm.eta falls over all rounds"):
        fafed.start(**call(tmp_path, algorithm=falling))


KILLED = """
import os, signal, sys
sys.path[:0] = {path!r}
import fafed
from test_api import call

for record in fafed.start(**call({folder!r})):
    if record.round == 4:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    here = Path(__file__).parent
    path = [str(here), str(here.parent / "helpers")]
    code = KILLED.format(path=path, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    run = fafed.start(**call(tmp_path))
    assert len(run.history) == 4
    list(run)
    equal(run, fafed.train(**call()))


def test_another_run_is_refused_with_what_differs(tmp_path):
    fafed.train(**call(tmp_path))
    moved = clients()
    moved[2][0][3, 1] += 1e-3
    torch.manual_seed(1)
    other = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    for change, words in [
        ({"algorithm": fafed.SCAFFOLD(eta=0.1)}, r"algorithm.eta is 0.1, there it is 0.05\. Set"),
        ({"algorithm": fafed.FedAvg(eta=0.05)}, "algorithm.name is fedavg, there it is scaffold"),
        ({"seed": 4}, "seed is 4, there it is 3"),
        ({"local_steps": 3}, "local_steps is 3, there it is 2"),
        ({"batch_size": 6}, "batch_size is 6, there it is 5"),
        ({"weights": [1, 1, 1, 2]}, r"weights is \[1.0, 1.0, 1.0, 2.0\], there it is uniform"),
        ({"clip": 1.0}, "clip is 1.0, there it is not given"),
        ({"weight_decay": 0.1}, "weight_decay is 0.1, there it is 0.0"),
        ({"participation": lambda r: range(4)}, "participation is .*<lambda>"),
        ({"participation": [[0, 1], range(4)]}, r"participation is \[\[0, 1\], \[0, 1, 2, 3\]\]"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "loss is .*CrossEntropyLoss.*0.1"),
        ({"output": "random_round"}, "output is random_round, there it is last"),
        ({"clients": moved}, "the clients' data differ"),
        ({"clients": [*clients(3), clients(5, 31)[4]]}, r"examples is \[30, 30, 30, 31\]"),
        ({"test": moved[2]}, "the test data differ"),
        ({"client_test": moved}, "the clients' test data differ"),
        ({"model": other}, "initial values differ. Call torch.manual_seed before you build it"),
        ({"model": net()}, r"parameters is \d+, there it is \d+"),
    ]:
        with pytest.raises(fafed.ConfigError, match=f"holds another run: .*{words}"):
            fafed.start(**call(tmp_path, **change))
    fafed.start(**call(tmp_path, workers=1, quiet=True, checkpoint_every=3))  # these are free


def test_a_large_tensor_is_read_in_part(monkeypatch):
    monkeypatch.setattr(python_run, "SMALL", 2**10)
    for shape in [(1000, 4), (4000,), (3, 1500)]:
        before = torch.zeros(shape)
        after = before.clone()
        after[-1] = 1  # the last row is always in the sample
        assert checksum([before]) == checksum([before.clone()]) != checksum([after])
        assert checksum([before]) != checksum([before.double()])


def test_schedules_partials_and_own_algorithms_are_described(tmp_path):
    algorithm = fafed.FAFED(eta=fafed.schedules.Power(kappa=0.1), alpha=Late())
    loss = partial(F.cross_entropy, label_smoothing=0.1)
    fafed.train(**call(tmp_path, algorithm=algorithm, loss=loss, rounds=1))
    found = RunDir(tmp_path).experiment()
    assert found.algorithm.options["eta"] == {
        "schedule": "power",
        "kappa": 0.1,
        "w": 1.0,
        "every": 1,
        "exponent": 1 / 3,
    }
    assert found.algorithm.options["alpha"] == {"class": "Late"}
    assert json.loads(found.loss) == {"function": "cross_entropy", "label_smoothing": 0.1}
    algorithm = fafed.FAFED(eta=fafed.schedules.Power(kappa=0.2), alpha=Late())
    with pytest.raises(
        fafed.ConfigError, match=r"eta is power: kappa 0.2, .* there it is power: kappa 0.1"
    ):
        fafed.start(**call(tmp_path, algorithm=algorithm, loss=loss, rounds=1))


def test_a_run_without_a_finished_round_leaves_the_folder_free(tmp_path):
    with pytest.raises(fafed.ConfigError, match="4 positive numbers"):
        fafed.start(**call(tmp_path, weights=[1, 2]))
    fafed.start(**call(tmp_path, seed=9))
    equal(fafed.train(**call(tmp_path)), fafed.train(**call()))


def test_the_folder_is_locked_while_a_loop_runs_and_free_after_it(tmp_path):
    run, other = (fafed.start(**call(tmp_path)) for _ in range(2))
    for record in run:
        with pytest.raises(Busy, match="in use by another process"):
            next(iter(other))
        if record.round == 2:
            break
    assert next(iter(other)).round == 3  # the other one catches up with what was done
    with run:
        loop = iter(run)
        assert next(loop).round == 4
        assert next(iter(run)).round == 5  # a new loop ends the one before it
        assert list(loop) == []
        held = iter(run)
        assert next(held).round == 6
    assert list(held) == []  # the end of the block has closed it
    assert [record.round for record in other] == [7]
    with pytest.raises(KeyError):
        failing(fafed.start(**call(tmp_path, rounds=9)), 8, KeyError)
    assert [r.round for r in fafed.start(**call(tmp_path, rounds=9))] == [9]


def test_a_folder_that_was_deleted_meanwhile(tmp_path):
    run = stopped(fafed.start(**call(tmp_path / "run")), 2)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(fafed.FafedError, match="has lost the checkpoints of this run"):
        next(iter(run))


def test_the_command_line_reads_the_folder_but_cannot_resume_it(tmp_path):
    stopped(fafed.start(**call(tmp_path / "run")), 4)
    place = RunDir(tmp_path / "run")
    with pytest.raises(fafed.ConfigError, match=r"was begun by Python code.* run the script again"):
        execute(place.experiment(), place)
    data = place.data()
    assert [len(data.records), data.finished, data.config["algorithm"]["name"]] == [
        4,
        False,
        "scaffold",
    ]
    assert data.counts is not None
    assert all_runs(tmp_path)[0].path == place.path
    (place.path / "records.jsonl").write_bytes(b"torn")
    with pytest.raises(Damaged, match=r"running its script again goes on .* move the folder away"):
        place.records()


def test_a_divergence_in_a_folder_says_why_and_keeps_the_rounds(tmp_path):
    change = {"algorithm": fafed.FedAvg(Late()), "rounds": 9, "local_steps": 4}
    with pytest.raises(fafed.Diverged) as error:
        fafed.train(**call(tmp_path, **change))
    assert len(error.value.history) == len(RunDir(tmp_path).records()) == 3
    assert RunDir(tmp_path).failure() == str(error.value)


def test_the_model_is_saved_with_tied_tensors(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))[:, :3]

    run = stopped(fafed.start(**call(model=Tied())), 2)
    run.save(tmp_path / "model.safetensors")
    model = Tied()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    inputs = clients()[0][0]
    assert torch.equal(model(inputs), run.model(inputs))


def test_they_print_as_a_summary(tmp_path):
    run = stopped(fafed.start(**call(tmp_path / "run")), 2)
    last = run.history[-1].test
    assert repr(run) == (
        f"SCAFFOLD: round 2 of 7 on {run.engine}, test loss {last['loss']:.4f}, "
        f"test accuracy {last['accuracy']:.4f}, in {tmp_path / 'run'}"
    )
    assert repr(run.result()) == repr(run)


def struck(folder, at):
    """Ctrl-C in these calls of a metric."""
    seen = []

    def metric(outputs, targets):
        seen.append(1)
        if len(seen) in at:
            signal.raise_signal(signal.SIGINT)
        return 0.0

    return call(folder, metrics={"own": metric}, validation=None, workers=1, checkpoint_every=50)


def test_ctrl_c_returns_what_is_finished(tmp_path, caplog):
    whole = fafed.train(**struck(None, ()))
    for folder in (None, tmp_path):
        result = fafed.train(**struck(folder, {5}))  # the first call tries the metric
        assert not result.finished
        assert numbers(result.history) == numbers(whole.history)[:3]
        assert "interrupted: SCAFFOLD: round 3 of 7" in caplog.text
    equal(fafed.train(**struck(tmp_path, ())), whole)


def test_ctrl_c_in_the_users_loop_is_an_ordinary_one(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        failing(fafed.start(**call(tmp_path)), 2, partial(signal.raise_signal, signal.SIGINT))
    assert len(RunDir(tmp_path).records()) == 2
    equal(fafed.train(**call(tmp_path)), fafed.train(**call()))


def test_a_second_ctrl_c_raises():
    def impatient(record):
        if record.round == 3:
            signal.raise_signal(signal.SIGINT)  # waits for the end of the round
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fafed.train(**call(on_record=impatient))


def test_every_record_is_told(tmp_path):
    one, other = [], []
    track = f"tensorboard:{tmp_path / 'board'}"
    run = stopped(fafed.start(**call(on_record=[one.append, other.append], track=track)), 3)
    assert one == other == run.history
    events = list((tmp_path / "board").rglob("events*"))
    assert len(events) == 1
    with pytest.raises(fafed.ConfigError, match="does not say where"):
        fafed.start(**call(track="mlflow"))
    fafed.train(**call(tmp_path / "run", on_record=one.append, track=[track]))
    assert (tmp_path / "board" / "run").is_dir()
    assert len(one) == 3 + 7


def test_progress_shows_itself_in_a_terminal_alone(monkeypatch, capfd):
    fafed.train(**call())
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    fafed.train(**call())
    shown = capfd.readouterr().err
    assert "SCAFFOLD" in shown
    assert "7/7" in shown
    assert "accuracy" in shown
    fafed.train(**call(quiet=True))
    assert capfd.readouterr() == ("", "")
