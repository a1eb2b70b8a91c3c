"""Sharpness-aware gradients: the gradient at x + rho g / |g|."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close, robust
from torch import nn
from torch.nn import functional as F
from transcriptions.fafed import fafed as fafed_transcribed
from transcriptions.fedavg import fedavg, scaffold
from transcriptions.fedcm import fedcm

import fafed
from fafed.core.batch import Batch
from fafed.kernels.build import available
from fafed.objectives.function import Function
from fafed.objectives.module import Model
from fafed.training.build import build

N, Q, R, RHO = 4, 3, 4, 0.3
UNIFORM = [1 / N] * N


def sharp(plain):
    def g(i, *place):
        *t, x = place
        first = plain(i, *t, x)
        return plain(i, *t, x + RHO * first / first.norm())

    return g


def xs(p, algorithm, engine="loop"):
    objective = Function(robust, p.x0, sam=RHO)
    run = build(
        algorithm, objective, p.source(), rounds=R, local_steps=Q, seed=p.seed, engine=engine
    )
    found = [(run.state.shared.x, record) for record in run]
    return torch.stack([x for x, _ in found]), found[-1][1]


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_fedsam_mofedsam_and_fedgamma(engine):
    p, eta = Problem(N), 0.05
    g = sharp(p.g)
    for algorithm, expected in [
        (fafed.FedAvg(eta), fedavg(p.x0, g, UNIFORM, Q, R, lambda t: eta)),
        (fafed.FedCM(eta, 0.3), [x for x, _ in fedcm(p.x0, g, UNIFORM, Q, R, lambda t: eta, 0.3)]),
        (fafed.SCAFFOLD(eta), [x for x, *_ in scaffold(p.x0, g, UNIFORM, Q, R, lambda t: eta)]),
    ]:
        found, record = xs(p, algorithm, engine)
        close(found, torch.stack(expected))
        assert record.samples == 2 * N * Q * R * p.b
        assert record.gradients == 2 * N * Q * R


def test_both_gradients_of_a_variance_reduced_step_are_sharp():
    p = Problem(N)
    log = fafed_transcribed(
        p.x0, sharp(p.g), sharp(p.g0), N, Q, Q * R, lambda t: 0.05, lambda t: 0.1, 0.9, 0.1
    )
    found, record = xs(p, fafed.FAFED(eta=0.05, alpha=0.1, rho=0.1))
    plain = Problem(N).xs(fafed.FAFED(eta=0.05, alpha=0.1, rho=0.1), Q, R)
    assert not torch.allclose(found, plain)
    close(found[-1], log["next"][Q * R][0])
    assert record.samples == 2 * N * (2 * Q * R * p.b + p.B)


def small(sam, clip=None, weight_decay=0.0):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()
    options = {"clip": clip, "weight_decay": weight_decay, "sam": sam}
    return Model(module, F.cross_entropy, **options)


def a_batch():
    g = torch.Generator().manual_seed(1)
    data = (torch.randn(6, 5, generator=g).double(), torch.randint(0, 3, (6,), generator=g))
    return Batch(data, torch.tensor(3), torch.tensor(True))


def test_buffers_move_once_and_decay_and_clipping_come_last():
    plain, model, batch = small(0.0), small(RHO, 0.7, 0.1), a_batch()
    x = plain.x0
    first = plain.evaluate(x, batch, plain.start())
    up = x + RHO * first.gradient / first.gradient.norm()
    g = plain.evaluate(up, batch, plain.start()).gradient + 0.1 * x
    assert g.norm() > 0.7
    for way in (model.evaluate, model.evaluate_functional, model.evaluate_native):
        found = way(x, batch, model.start())
        close(found.gradient, 0.7 * g / g.norm())
        close(found.loss, first.loss)
        for a, b in zip(found.memory.buffers, first.memory.buffers, strict=True):
            close(a, b)


def test_a_gradient_of_zero_stays_zero():
    objective = Function(lambda x, data: (x**2).sum(), torch.zeros(3), sam=RHO)
    found = objective.evaluate(torch.zeros(3), a_batch(), objective.start())
    assert torch.equal(found.gradient, torch.zeros(3))


@pytest.mark.skipif(not available(torch.float64), reason="needs a C compiler")
def test_the_steps_in_c_do_not_ignore_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    g = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(9, 5, generator=g).double(), torch.randint(0, 3, (9,), generator=g))
        for _ in range(3)
    ]
    call = {"rounds": 3, "local_steps": 2, "batch_size": 4}
    for algorithm in (fafed.FedAvg(0.1), fafed.FAFED(0.05, rho=0.1)):
        loop, native = (
            fafed.train(model, data, algorithm, engine=e, sam=RHO, **call)
            for e in ("loop", "native")
        )
        plain = fafed.train(model, data, algorithm, engine="native", **call)
        close(loop.x, native.x)
        assert loop.history[-1].gradients == native.history[-1].gradients
        assert native.history[-1].gradients == 2 * plain.history[-1].gradients
        assert not torch.allclose(plain.x, native.x)


def test_a_negative_radius_is_refused():
    with pytest.raises(fafed.ConfigError, match=r"sam must be a number >= 0, got -1"):
        small(-1)
