"""FedKron on quadratics: where it ends, when it is stable, how far its scale may stretch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from problem import close

from fafed import FedAvg, FedKron
from fafed.algorithms.fedkron import Replica
from fafed.data.sources.examples import Examples
from fafed.objectives.function import Function
from fafed.training.build import build

Q, ROUNDS = 5, 90
FIXED = {"mu": 0.5, "beta": 0.5, "rho": 0.5, "reach": 0.0, "kappa": 0.0, "end": 1.0}
H = torch.tensor([[[1.0, 0.3], [0.3, 0.5]], [[3.0, -1.0], [-1.0, 2.0]]]).double()
B = torch.tensor(np.random.default_rng(1).normal(size=(2, 2, 2)))
X0 = torch.tensor([1.0, -0.5, 0.25, 2.0]).double()


def loss(x, data):
    """The mean of tr((W - b) h (W - b)') / 2, whose gradient is (W - b) h."""
    h, b = data
    W = x.reshape(2, 2) - b
    return ((W @ h) * W).sum(dim=(-2, -1)).mean() / 2


def end(algorithm, rounds=ROUNDS):
    source = Examples((H, B), [np.array([0]), np.array([1])], batch_size="full", anchor_size="full")
    objective = Function(loss, X0, shapes=[(2, 2)])
    run = build(algorithm, objective, source, rounds=rounds, local_steps=Q, engine="loop")
    for _ in run:
        pass
    return run.state.shared.x.reshape(2, 2)


def fixed_point(h):
    """sum_i (W - B_i) M_i = 0 with M_i = I - (I - h H_i)^q."""
    eye = torch.eye(2).double()
    M = [eye - torch.linalg.matrix_power(eye - h * own, Q) for own in H]
    return (B[0] @ M[0] + B[1] @ M[1]) @ torch.linalg.inv(M[0] + M[1])


def eta_for(h):
    """The eta whose local step is h where the mean gradient, and so R, is 0."""
    W = X0.reshape(2, 2)
    first = sum((W - b) @ own for own, b in zip(H, B, strict=True)) / 2
    top = torch.linalg.eigvalsh(first.T @ first / 2)[-1]
    s = torch.linalg.matrix_norm(W, 2) / math.sqrt(2)
    floor = FIXED["rho"] ** 2 * math.sqrt(top)
    return float(h * floor / s * math.sqrt(Q * ROUNDS))


def optimum():
    return (B[0] @ H[0] + B[1] @ H[1]) @ torch.linalg.inv(H[0] + H[1])


def test_it_ends_at_the_optimum():
    """Where the mean gradient vanishes, so do local steps, and with them their bias."""
    found = end(FedKron(eta_for(0.1), **FIXED | {"reach": 1.0}))
    close(found, optimum(), atol=1e-9)


def test_without_reach_it_ends_where_fedavg_with_the_largest_scale_ends():
    """The bias is FedAvg's: the shared scale adds none of its own."""
    h = 0.1
    found = end(FedKron(eta_for(h), **FIXED))
    close(found, fixed_point(h), atol=1e-9)
    close(end(FedAvg(h)), fixed_point(h), atol=1e-9)
    assert (found - optimum()).norm() > 0.01


def test_the_bias_falls_with_the_step():
    """So a step size that falls to 0 removes it."""
    small, large = ((fixed_point(h) - optimum()).norm() for h in (1e-3, 2e-3))
    assert float(large / small) == pytest.approx(2, rel=0.02)


def size_after(a, mu, rounds):
    """|x| on one quadratic with its optimum at 0, where q local steps leave the share a of x."""
    algorithm = FedKron(0.1, **FIXED | {"mu": mu}).bind_model([(1,)]).bind_run(ROUNDS, Q)
    one = torch.ones(1).double()
    x = 1e-9 * one  # so near that R stays 0
    replica = Replica(x, F=0 * one, e=0 * one, u=0 * one, top=one, s=one)
    h = algorithm._rate(0, Q) / (FIXED["rho"] ** 2)
    for _ in range(rounds):
        replica = algorithm._moved(replica, (1 - a) * replica.x / (Q * h), 0, Q)
    return float(replica.x.abs() / 1e-9)


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.8])
def test_when_it_is_stable(mu):
    """The eigenvalues z of a round: z^2 - (1 + mu) a z + mu a = 0. They are inside the unit circle
    if and only if -1 / (1 + 2 mu) < a < 1."""
    least = -1 / (1 + 2 * mu)
    for a in (0.9, 0.0, least + 0.05):
        radius = np.abs(np.roots([1, -(1 + mu) * a, mu * a])).max()
        assert radius < 1
        assert size_after(a, mu, 120) < 0.05
    assert np.abs(np.roots([1, -(1 + mu) * (least - 0.02), mu * (least - 0.02)])).max() > 1
    assert size_after(least - 0.02, mu, 120) > 3


def test_the_scale_stretches_by_at_most_its_bound():
    """Its eigenvalues are between s / sqrt(top + phi) and s / sqrt(phi), with phi >= rho^2 top."""
    algorithm = FedKron(**FIXED).bind_model([(3, 4)]).bind_run(ROUNDS, Q)
    torch.manual_seed(0)
    for size in (1e-6, 1.0, 1e6):
        replica = algorithm._with_scale(algorithm._first(torch.randn(12).double()), torch.ones(12))
        replica = algorithm._moved(replica, size * torch.randn(12).double(), 0, Q)
        (scale,) = algorithm._scale(replica)
        w = torch.linalg.eigvalsh(scale(torch.eye(4).double()))
        assert float(w[-1] / w[0]) <= math.sqrt(1 + FIXED["rho"] ** -2) + 1e-9
