"""FedMuon against its pseudo-code with singular values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problem import Problem, close
from torch import nn
from transcriptions.fedadamw import fedmuon as transcribed

import fafed
from fafed import ConfigError, FedMuon
from fafed.algorithms.fedmuon import orthogonal
from fafed.data.sources.examples import Examples
from fafed.objectives.function import Function
from fafed.training.build import build

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N
SETTINGS = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "decay": 0.1}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("wire", ["compact", "full"])
@pytest.mark.parametrize("others", ["adamw", "sgd"])
def test_equals_the_pseudo_code(wire, others, engine):
    """The problem's seven numbers are a matrix of two rows, and one more."""
    p = Problem(N)
    for eta in (lambda t: 0.02, lambda t: 0.05 / t**0.5):
        start = (p.x0, p.g, UNIFORM, Q, R, eta, 0.3, 0.8, (2, 3), others)
        log = transcribed(*start, *SETTINGS.values())
        algorithm = FedMuon(eta, 0.3, 0.8, others=others, **SETTINGS, wire=wire)
        close(p.xs(algorithm, Q, R, engine=engine), torch.stack(log), atol=1e-10)


def test_absent_clients_and_weights():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    weights, cohorts = [0.1, 0.2, 0.3, 0.4], [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    start = (p.x0, p.g, weights, Q, R, lambda t: 0.02, 0.5, 0.95, (2, 3), "adamw")
    log = transcribed(*start, *SETTINGS.values(), cohorts)
    found = p.xs(FedMuon(0.02, **SETTINGS, wire="full"), Q, R, participation=cohorts)
    close(found, torch.stack(log), atol=1e-10)
    with pytest.raises(ConfigError, match=r"needs every client.*wire='full'"):
        p.run(FedMuon(), Q, participation=0.5)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_singular_values_end_near_one(shape):
    M = torch.tensor(np.random.default_rng(0).normal(size=shape))
    found = orthogonal(M, 5)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6
    assert values.max() < 1.3
    U, _, V = torch.linalg.svd(M, full_matrices=False)
    own = U.T @ found @ V.T
    close(own, torch.diag(torch.diag(own)))
    assert torch.equal(orthogonal(torch.zeros(shape), 5), torch.zeros(shape))


def test_which_tensors_are_matrices():
    shapes = [(4, 3), (3,), (2, 3, 2, 2), (1, 5), (5, 1), ()]
    algorithm = FedMuon().bind_model(shapes)
    x = torch.arange(50.0)
    matrices, rest = algorithm.parted(x[: 12 + 3 + 24 + 5 + 5 + 1])
    assert matrices.tolist() == [*range(12), *range(15, 39)]
    assert rest.tolist() == [12, 13, 14, *range(39, 50)]
    assert torch.equal(algorithm.joined(matrices, rest), x)


def test_on_a_network_all_engines_agree():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)).double()
    data = [
        (torch.randn(8, 1, 4, 4, generator=g).double(), torch.randint(0, 3, (8,), generator=g))
        for _ in range(3)
    ]
    found = [
        fafed.train(model, data, FedMuon(0.02), rounds=3, local_steps=2, batch_size=4, engine=e).x
        for e in ("loop", "vmap")
    ]
    close(*found, atol=1e-10)


def bias(algorithm, rounds):
    """How far from the optimum two clients with a matrix quadratic each end."""
    r = np.random.default_rng(1)
    A = torch.tensor([[1.0, 0.3], [0.3, 0.5]] * 1 + [[3.0, -1.0], [-1.0, 2.0]]).double()
    A = A.reshape(2, 1, 2, 2)
    B = torch.tensor(r.normal(size=(2, 1, 2, 2)))

    def f(x, data):
        a, b = data
        return ((a @ (x.reshape(2, 2) - b)) ** 2).sum() / 2

    H = [a[0].T @ a[0] for a in A]
    best = torch.linalg.solve(H[0] + H[1], H[0] @ B[0, 0] + H[1] @ B[1, 0])
    source = Examples((A[:, 0], B[:, 0]), [np.array([0]), np.array([1])], batch_size="full")
    objective = Function(f, torch.zeros(4, dtype=torch.float64), shapes=[(2, 2)])
    run = build(algorithm, objective, source, rounds=rounds, local_steps=5, engine="loop")
    for _ in run:
        pass
    return float((run.state.shared.x.reshape(2, 2) - best).norm())


def test_without_the_shared_momentum_it_does_not_reach_the_optimum():
    """The mean of orthogonal directions is not the direction of the mean. D does not cure it."""
    for alpha in (0.0, 0.5):
        assert bias(FedMuon(0.05, alpha, beta=0.0), 200) > 0.8
        assert bias(FedMuon(0.05, alpha, beta=0.9), 200) < 0.1
