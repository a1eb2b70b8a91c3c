"""Naive adaptive FedAvg, and the counterexample of Theorem 1 (ID-12, ID-13).

N = 3, d = 1: gradients 6 clip(x, -1, 1) for one client and -2 clip(x, -1, 1) for two, so the
mean of the losses has its minimum at 0.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problem import Problem, close
from transcriptions.naive import naive as transcribed

from fafed import FAFED, FedAvg, NaiveAdaptiveFedAvg
from fafed.data.sources.examples import Examples
from fafed.objectives.function import Function
from fafed.training.build import build


def loss(x, data):
    (slope,) = data
    inside, outside = slope.mean() * x**2 / 2, slope.mean() * (x.abs() - 0.5)
    return torch.where(x.abs() <= 1, inside, outside).sum()


def path(algorithm, q, T, x0=10.0):
    """xbar after each round."""
    pool = (torch.tensor([6.0, -2.0, -2.0], dtype=torch.float64),)
    source = Examples(pool, np.split(np.arange(3), 3), batch_size="full")
    objective = Function(loss, torch.tensor([x0], dtype=torch.float64))
    run = build(algorithm, objective, source, rounds=T // q, local_steps=q, engine="loop")
    return [float(run.state.shared.x) for _ in run]


@pytest.mark.parametrize("local", ["sgd", "adam"])
@pytest.mark.parametrize("rho", [0.0, 0.1])
def test_equals_the_pseudo_code(local, rho):
    p, T, q = Problem(4), 12, 3
    beta1 = 0.8 if local == "adam" else None
    expected = transcribed(p.x0, p.g, 4, q, T, lambda t: 0.05, 0.9, rho, beta1)
    found = p.xs(NaiveAdaptiveFedAvg(0.05, 0.9, rho, local_rule=local, beta1=0.8), q, T // q)
    close(found, torch.stack(expected))


def test_zero_gradient_makes_no_step():
    pool = (torch.zeros(2, dtype=torch.float64),)
    source = Examples(pool, [np.array([0]), np.array([1])], batch_size="full")
    objective = Function(loss, torch.tensor([0.5], dtype=torch.float64))
    run = build(NaiveAdaptiveFedAvg(), objective, source, rounds=2, local_steps=2)
    list(run)
    assert float(run.state.shared.x) == 0.5


def test_the_papers_first_step():
    assert path(NaiveAdaptiveFedAvg(0.1, 0.5), 1, 1) == pytest.approx([10.0471405], abs=5e-8)


@pytest.mark.parametrize("q", [1, 10, 20])
def test_closed_form_and_reference_values(q):
    eta, beta, T = 0.1, 0.5, 100
    found = path(NaiveAdaptiveFedAvg(eta, beta), q, T)
    closed = 10 + eta / 3 * np.cumsum((1 - beta ** np.arange(1, T + 1)) ** -0.5)
    np.testing.assert_allclose(found, closed[q - 1 :: q], rtol=0, atol=1e-11)
    assert found[-1] == pytest.approx(13.3567502, abs=2e-7)
    if q == 1:
        assert found[1] == pytest.approx(10.0856304, abs=2e-7)
        assert found[9] == pytest.approx(10.3567340, abs=2e-7)


def test_long_runs():
    assert path(NaiveAdaptiveFedAvg(0.1, 0.5), 1, 600)[-1] == pytest.approx(30.0234169, abs=2e-7)
    assert path(NaiveAdaptiveFedAvg(0.1, 0.5), 300, 600)[-1] == pytest.approx(37.81, abs=5e-3)


def test_the_drift_changes_sign_at_rho_6():
    def drift(rho):  # after v has settled; proportional to 4/(2+rho) - 6/(6+rho)
        x = path(NaiveAdaptiveFedAvg(0.01, 0.5, rho), 1, 70)
        return x[-1] - x[-2]

    assert drift(5.9) > 1e-6
    assert abs(drift(6.0)) < 1e-12
    assert drift(6.1) < -1e-6
    assert abs(path(NaiveAdaptiveFedAvg(4.0, 0.5, 8.0), 1, 1000)[-1]) < 1e-6


@pytest.mark.parametrize("alpha", [0.1, 0.9])
@pytest.mark.parametrize("q", [1, 5, 10])
def test_fafed_moves_to_the_optimum(alpha, q):
    eta, rho, T = 0.1, 0.01, 100
    found = path(FAFED(eta, alpha, beta=0.5, rho=rho), q, T)
    t = np.arange(q, T + 1, q) + 1  # after round r the model is xbar_{rq+1}
    closed = 10 - 2 / 3 * eta - (t - 1) * 2 / 3 * eta / (np.sqrt(44 / 3) + rho)
    np.testing.assert_allclose(found, closed, rtol=0, atol=1e-11)


def test_reference_values():
    found = path(FAFED(0.1, 0.1, beta=0.5, rho=0.01), 1, 300)
    assert found[98] == pytest.approx(8.2144528, abs=5e-8)  # xbar_100
    assert found[298] == pytest.approx(4.7419669, abs=5e-8)  # xbar_300


@pytest.mark.parametrize(
    ("q", "eta", "rho", "alpha", "T", "low", "high"),
    [
        (1, 0.1, 0.1, 0.5, 1000, -1e-30, 1e-30),
        (10, 0.1, 0.01, 0.9, 1000, 1.98, 2.17),
        (10, 0.1, 0.01, 0.1, 1000, 1.34, 1.49),
    ],
)
def test_where_fafed_converges_and_where_it_stalls(q, eta, rho, alpha, T, low, high):
    assert low <= path(FAFED(eta, alpha, beta=0.5, rho=rho), q, T)[-1] <= high


def test_fedavg_stalls_too():
    assert path(FedAvg(0.1), 10, 2000)[-1] == pytest.approx(4.0105, abs=5e-4)
