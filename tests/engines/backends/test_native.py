"""Local steps that are made at once in C are the steps of the loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fafed
from fafed.core.schedules import Power
from fafed.engines.client import Oracle
from fafed.kernels import network as native
from fafed.kernels.build import available
from fafed.models import build as build_model

pytestmark = pytest.mark.skipif(not available(torch.float64), reason="needs a C compiler")

POWER = Power(kappa=0.1, w=2.0)
ALGORITHMS = {
    "fedavg": fafed.FedAvg(eta=0.05),
    "fedavg, decreasing": fafed.FedAvg(eta=POWER),
    "fedadam": fafed.FedAdam(eta=0.05),
    "fedams": fafed.FedAMS(eta=0.05),
    "fedcm": fafed.FedCM(eta=0.05, alpha=0.3),
    "scaffoldm": fafed.SCAFFOLDM(eta=0.05, alpha=0.3),
    "fedexp": fafed.FedExP(eta=0.05),
    "diloco, sgd": fafed.DiLoCo(eta=0.05, inner="sgd"),
    "fedavg, linear": fafed.FedAvg(eta=fafed.schedules.Linear(0.05, warmup=0.3)),
    "fedavg, own": fafed.FedAvg(eta=lambda t: 0.05 / t),
    "scaffold": fafed.SCAFFOLD(eta=0.05),
    "scaffold, full": fafed.SCAFFOLD(eta=0.05, wire="full", control="batch"),
    "stem": fafed.STEM(eta=0.05, alpha=0.3),
    "fafed": fafed.FAFED(eta=0.005, alpha=0.3, rho=0.1),
    "fafed, decreasing": fafed.FAFED(eta=POWER, alpha=POWER, rho=0.5),
    "fafed, stale": fafed.FAFED(eta=0.005, alpha=0.3, rho=0.1, sync_precond="stale"),
    "fafed, amsgrad": fafed.FAFED(eta=0.005, alpha=0.3, rho=0.1, adaptivity="amsgrad"),
}
OTHER_STEPS = {
    "old gradient": fafed.FAFED(eta=0.005, rho=0.1, old_grad_scale=0.95),
    "no old gradient": fafed.FAFED(eta=0.005, rho=0.1, old_grad_scale=0.0),
    "global": fafed.FAFED(eta=0.005, rho=0.1, adaptivity="global"),
    "fedprox": fafed.FedProx(eta=0.05),
    "feddyn": fafed.FedDyn(eta=0.05, mu=1.0),
    "diloco": fafed.DiLoCo(eta=0.005),
    "fedadamw": fafed.FedAdamW(eta=0.005),
    "fedlada": fafed.FedLADA(eta=0.005),
    "fedmuon": fafed.FedMuon(eta=0.005),
}


def clients(n=5, size=11, shape=(9,), classes=4):
    g = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(size, *shape, generator=g, dtype=torch.float64),
            torch.randint(0, classes, (size,), generator=g),
        )
        for _ in range(n)
    ]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 70), nn.ReLU(), nn.Linear(70, 4, bias=False)).double()


def train(algorithm, engine, model=None, data=None, **options):
    options = {"rounds": 3, "local_steps": 3, "batch_size": 4} | options
    return fafed.train(model or net(), data or clients(), algorithm, engine=engine, **options)


@pytest.fixture
def calls(monkeypatch):
    """Gradients that an algorithm asked for one by one."""
    made = []
    one = Oracle.__call__

    def counted(self, x, batch):
        made.append(batch.step)
        return one(self, x, batch)

    monkeypatch.setattr(Oracle, "__call__", counted)
    return made


def assert_same(one, other):
    torch.testing.assert_close(one.x, other.x, rtol=1e-12, atol=1e-13)
    for a, b in zip(one.history, other.history, strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-12)
        assert (a.gradients, a.samples, a.bytes_up) == (b.gradients, b.samples, b.bytes_up)


@pytest.mark.parametrize("q", [1, 2, 3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_steps_of_the_loop(name, q, calls):
    plain = train(ALGORITHMS[name], "loop", local_steps=q)
    calls.clear()
    fast = train(ALGORITHMS[name], "native", local_steps=q)
    assert not any(calls)  # no step by itself; anchors are
    assert_same(plain, fast)


@pytest.mark.parametrize("model", ["fashion-cnn", "mnist-cnn"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fafed"])
def test_convolutions_and_layers_of_several_blocks(name, model):
    data = clients(2, 5, (1, 28, 28), 10)
    common = {"model": build_model(model, seed=0).double(), "data": data, "rounds": 2}
    assert_same(*(train(ALGORITHMS[name], e, **common) for e in ("loop", "native")))


@pytest.mark.parametrize("name", OTHER_STEPS)
def test_other_steps_are_made_one_by_one(name, calls):
    plain = train(OTHER_STEPS[name], "loop")
    calls.clear()
    fast = train(OTHER_STEPS[name], "native")
    assert any(calls)
    assert_same(plain, fast)


@pytest.mark.parametrize("options", [{"clip": 0.1}, {"weight_decay": 0.1}])
@pytest.mark.parametrize("name", ["fedavg", "fafed"])
def test_so_are_steps_with_changed_gradients(name, options, calls):
    plain = train(ALGORITHMS[name], "loop", **options)
    calls.clear()
    fast = train(ALGORITHMS[name], "native", **options)
    assert any(calls)
    assert_same(plain, fast)


@pytest.mark.parametrize("name", ["fedavg", "fafed"])
def test_and_batches_that_are_done_in_pieces(name, calls, monkeypatch):
    plain = train(ALGORITHMS[name], "loop")
    monkeypatch.setattr(native, "ROOM", 600)
    calls.clear()
    fast = train(ALGORITHMS[name], "native")
    assert any(calls)
    assert_same(plain, fast)


@pytest.mark.parametrize("name", ["scaffold, full", "fafed"])
def test_clients_that_come_and_go(name):
    common = {"participation": 0.5, "rounds": 5}
    assert_same(*(train(ALGORITHMS[name], engine, **common) for engine in ("loop", "native")))


@pytest.mark.parametrize("wire", [fafed.Wire("int8"), fafed.Wire("topk", share=0.2)])
def test_compressed_messages(wire):
    common = {"wire": wire, "participation": 0.6}
    assert_same(*(train(ALGORITHMS["fafed"], e, **common) for e in ("loop", "native")))


@pytest.mark.parametrize("name", ["fedavg", "fafed"])
def test_whole_shards_and_targets_that_do_not_count(name):
    data = clients()
    for _, y in data:
        y[::3] = -100
    common = {"data": data, "batch_size": "full"}
    assert_same(*(train(ALGORITHMS[name], engine, **common) for engine in ("loop", "native")))


@pytest.mark.parametrize("name", ["fedavg", "fafed"])
def test_a_target_that_is_no_class(name, monkeypatch):
    """C looks, too: what it does not refuse it would write beyond its rows."""
    monkeypatch.setattr("fafed.training.build.check_labels", lambda *_: None)
    data = clients(size=4)
    data[2][1][3] = 4
    with pytest.raises(IndexError, match="target 4 is out of bounds"):
        train(ALGORITHMS[name], "native", data=data, opening_batch_size=1)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_client_that_diverges_is_named(name):
    data = clients()
    data[3] = (data[3][0] * 1e200, data[3][1])
    with pytest.raises(fafed.FafedError, match="client 3"):
        train(ALGORITHMS[name], "native", data=data)
