"""FedDyn against its pseudo-code, and what it shares with FedPD."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.feddyn import feddyn as transcribed
from two_quadratics import limit

from fafed import FedAvg, FedDyn, FedPD, FedProx
from fafed.core.schedules import Power

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_equals_the_pseudo_code(engine):
    p, eta = Problem(N), Power(0.1)
    log = transcribed(p.x0, p.g, UNIFORM, Q, R, lambda t: eta(torch.tensor(t)), 0.7)
    run = p.run(FedDyn(eta, 0.7), Q, R, engine=engine)
    for (x, h, own), _ in zip(log, run, strict=True):
        close(run.state.shared.x, x)
        close(run.state.shared.h, h)
        close(h, sum(own) / N)
        for i in range(N):
            close(run.engine.states[i].local.g, own[i])


def test_absent_clients_and_weights():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    weights, cohorts = [0.1, 0.2, 0.3, 0.4], [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    log = transcribed(p.x0, p.g, weights, Q, R, lambda t: 0.05, 0.7, cohorts)
    found = p.xs(FedDyn(0.05, 0.7), Q, R, participation=cohorts)
    close(found, torch.stack([x for x, _, _ in log]))


@pytest.mark.parametrize("mu", [1.0, 0.5])
def test_no_bias_of_local_steps(mu):
    assert abs(limit(FedAvg(0.1), 5, 300)) > 0.1
    assert abs(limit(FedProx(0.1, mu), 5, 300)) > 0.01
    assert limit(FedDyn(0.1, mu), 5, 1000) == pytest.approx(0, abs=1e-9)


def test_the_first_round_is_that_of_fedpd():
    p = Problem(N)
    close(p.xs(FedDyn(0.05, 0.7), Q, 1), p.xs(FedPD(0.05, 0.7), Q, 1))
    assert not torch.allclose(p.xs(FedDyn(0.05, 0.7), Q, 2), p.xs(FedPD(0.05, 0.7), Q, 2))


def test_with_exact_local_solutions_it_is_fedpd():
    for rounds in (1, 2, 5, 20):
        found, other = (limit(kind(0.2, 2.0), 100, rounds) for kind in (FedDyn, FedPD))
        assert found == pytest.approx(other, abs=1e-12)
