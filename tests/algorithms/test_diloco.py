"""DiLoCo against torch's own optimisers."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.diloco import diloco as transcribed
from transcriptions.fedavg import local_sgd

from fafed import Adam, DiLoCo, FedAvg
from fafed.core.schedules import Linear

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N
BETAS = {"beta1": 0.8, "beta2": 0.95}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(("eta_g", "mu", "decay"), [(0.7, 0.9, 0.1), (1.0, 0.0, 0.0)])
def test_equals_torchs_optimisers(engine, eta_g, mu, decay):
    p, eta = Problem(N), Linear(0.02, over=Q * R)
    algorithm = DiLoCo(eta, eta_g, mu, **BETAS, eps=1e-6, decay=decay)
    log = transcribed(
        p.x0,
        p.g,
        UNIFORM,
        Q,
        R,
        lambda t: float(eta(torch.tensor(t))),
        eta_g,
        mu,
        (0.8, 0.95),
        1e-6,
        decay,
    )
    close(p.xs(algorithm, Q, R, engine=engine), torch.stack(log))


def test_absent_clients_keep_their_moments_and_their_count():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    weights, cohorts = [0.1, 0.2, 0.3, 0.4], [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    settings = (lambda t: 0.02, 0.7, 0.9, (0.8, 0.95), 1e-6, 0.1)
    log = transcribed(p.x0, p.g, weights, Q, R, *settings, cohorts)
    run = p.run(DiLoCo(0.02, **BETAS, eps=1e-6), Q, R, participation=cohorts)
    close(torch.stack([run.state.shared.x for _ in run]), torch.stack(log))
    assert [int(run.engine.states[i].local.n) for i in range(N)] == [9, 9, 9, 9]


def test_one_client_without_outer_momentum_is_adam():
    p = Problem(1)
    found = p.xs(DiLoCo(0.02, 1.0, 0.0, decay=0.0), Q, R)
    close(found, p.xs(Adam(0.02), Q, R))


def test_local_sgd_is_fedavg_with_nesterov_on_the_server():
    p, eta_g, mu = Problem(N), 0.7, 0.9
    x, u, expected = p.x0, torch.zeros_like(p.x0), []
    for r in range(R):
        ends = [local_sgd(x, p.g, i, r * Q + 1, Q, lambda t: 0.05) for i in range(N)]
        gradient = x - sum(ends) / N
        u = mu * u + gradient
        x = x - eta_g * (gradient + mu * u)
        expected.append(x)
    run = p.run(DiLoCo(0.05, inner="sgd"), Q, R)
    close(torch.stack([run.state.shared.x for _ in run]), torch.stack(expected))
    assert run.engine.states[0].local.m.numel() == 0
    close(p.xs(DiLoCo(0.05, 1.0, 0.0, inner="sgd"), Q, R), p.xs(FedAvg(0.05), Q, R))
