"""A fast way that computes something else than torch is noticed before the run, and not used."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fafed
from fafed.core.batch import Batch
from fafed.kernels import vectors
from fafed.kernels.build import available
from fafed.kernels.network import Network
from fafed.kernels.vocabulary import token_cross_entropy
from fafed.models import LSTMLanguageModel

needs_c = pytest.mark.skipif(not available(torch.float64), reason="needs a C compiler")


def clients(dtype=torch.float64, shape=(6,)):
    g = torch.Generator().manual_seed(0)
    return [
        (torch.randn(9, *shape, generator=g).to(dtype), torch.randint(0, 3, (9,), generator=g))
        for _ in range(3)
    ]


def net(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)


def train(engine, algorithm=None, module=None, **options):
    common = {"rounds": 2, "local_steps": 2, "batch_size": 4, "test": clients()[0]} | options
    algorithm = algorithm or fafed.FedAvg(eta=0.1)
    return fafed.train(module or net(), clients(), algorithm, engine=engine, **common)


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "fafed"]


def same(one, other):
    torch.testing.assert_close(one.x, other.x, rtol=1e-10, atol=1e-12)
    for a, b in zip(one.history, other.history, strict=True):
        assert a.test["loss"] == pytest.approx(b.test["loss"], rel=1e-10)


def scaled(factor):
    def gradient(self, *given):
        g, loss = right(self, *given)
        return factor * g, loss

    right = Network.gradient
    return gradient


@needs_c
@pytest.mark.parametrize("clip", [None, 1e-3])  # what is clipped has lost its factor
def test_a_gradient_in_c(caplog, monkeypatch, clip):
    loop = train("loop", clip=clip)
    monkeypatch.setattr(Network, "gradient", scaled(1.001))
    found = train("auto", clip=clip)
    assert found.engine == "vmap"
    same(found, loop)
    (warning,) = said(caplog)
    assert "its network in C does not compute what torch does and is not used (gradient" in warning
    with pytest.raises(fafed.ConfigError, match=r"engine='native' cannot run this.*use 'loop'"):
        train("native", clip=clip)


@needs_c
def test_outputs_in_c_that_only_the_data_reveal(caplog, monkeypatch):
    """relu6 is relu on made-up inputs. Evaluation uses torch, too, whatever the engine."""
    data = [(1000 * x, y) for x, y in clients()]
    monkeypatch.setattr(F, "relu", lambda x, inplace=False: F.relu6(x))
    common = {"rounds": 1, "local_steps": 1, "batch_size": 4, "test": data[0]}
    found = fafed.train(net(), data, fafed.FedAvg(eta=1e-6), engine="loop", **common)
    assert any("its network in C" in warning for warning in said(caplog))
    with torch.no_grad():
        loss = F.cross_entropy(found.model(data[0][0]), data[0][1]).item()
    assert found.history[-1].test["loss"] == pytest.approx(loss, rel=1e-12)


STEPS = {
    "sgd_steps": (fafed.FedAvg(eta=0.1), lambda end, *rest: (1.01 * end, *rest)),
    "storm_steps": (fafed.FAFED(eta=0.01), lambda x, old, m, *rest: (x, old, 1.01 * m, *rest)),
}


@needs_c
@pytest.mark.parametrize("name", STEPS)
def test_local_steps_in_c(name, caplog, monkeypatch):
    algorithm, spoil = STEPS[name]
    loop, right = train("loop", algorithm), getattr(Network, name)
    monkeypatch.setattr(Network, name, lambda *given, **named: spoil(*right(*given, **named)))
    found = train("auto", algorithm)
    assert found.engine == "native"  # its gradients are right
    same(found, loop)
    (warning,) = said(caplog)
    assert "its local steps in C does not" in warning


@needs_c
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["_storm_estimate", "_ema_of_squares", "_add"])
def test_updates_of_vectors(name, dtype, caplog, monkeypatch):
    """They are tried out once a process, so by functions that are wrong from the start."""
    right = getattr(vectors, name)

    def wrong(library, *given):
        given = given[0] + 1e-3 if name == "_ema_of_squares" else given[0], *given[1:]
        if name == "_add":
            given[0].add_(1e-3)
        found = right(library, *given)
        return (found[0] + 1e-3,) if name == "_storm_estimate" else found

    monkeypatch.setattr(vectors, name, wrong)
    vectors._compiled.cache_clear()
    assert vectors._compiled(dtype) is None
    vectors._compiled.cache_clear()
    assert len(said(caplog)) == 1


class KnowsVmap(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        lonely = not torch._C._functorch.is_functorch_wrapped_tensor(x)
        return self.layer(x) * (1 if lonely else 1.001)


def test_vmap(caplog):
    module = KnowsVmap().double()
    found = train("auto", module=module)
    assert found.engine == "loop"
    same(found, train("loop", module=module))
    (warning,) = said(caplog)
    assert "vmap does not compute what the loop does" in warning
    with pytest.raises(fafed.ConfigError, match="vmap does not compute what the loop does"):
        train("vmap", module=module)


class OwnLoss(nn.Module):
    computes = staticmethod(F.cross_entropy)

    def __init__(self, factor):
        super().__init__()
        self.layer, self.factor = nn.Linear(6, 3), factor

    def forward(self, x, targets=None):
        outputs = self.layer(x)
        return outputs if targets is None else self.factor * F.cross_entropy(outputs, targets)


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_a_loss_that_a_module_computes_itself(factor, caplog):
    torch.manual_seed(0)
    module = OwnLoss(factor).double()
    found = train("loop", module=module)
    same(found, train("loop", module=module.layer))
    assert len(said(caplog)) == (factor != 1)


def test_our_language_model_computes_its_loss(caplog):
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        goal = fafed.Model(LSTMLanguageModel(50, 4, 4).to(dtype), token_cross_entropy)
        tokens = torch.randint(0, 50, (3, 5))
        goal.probe(Batch((tokens, tokens), torch.tensor(1), torch.tensor(True)))
        assert goal.fused
    assert not said(caplog)


@needs_c
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e4, 1e12, 1e30, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_no_disagreement(dtype, scale, caplog):
    """Whatever the data are like: single examples, too."""
    for rows in (1, 9):
        for shape in ((6,), (1, 12, 12)):
            layers = [nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2)] if len(shape) > 1 else []
            inputs = 125 if layers else 6
            torch.manual_seed(0)
            module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, 7), nn.Tanh())
            module.append(nn.Linear(7, 3)).to(dtype)
            x, y = (part[:rows] for part in clients(dtype, shape)[0])
            goal = fafed.Model(module, F.cross_entropy)
            batch = Batch((scale * x, y), torch.tensor(1), torch.tensor(True))
            goal.probe(batch)
            assert goal.network is not None
            assert goal.steps_in_c
    assert not said(caplog)
