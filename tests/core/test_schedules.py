"""Schedules, against the formulas written out."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedavg import fedavg

import fafed
from fafed.core.schedules import Power, TheoryMomentum, TheoryStep, at


def test_power_in_its_three_units():
    t = torch.tensor(7460)
    assert float(Power(1.0, 1.0)(t)) == pytest.approx(7461 ** (-1 / 3))
    assert float(Power(20.0, 1.0, every=186)(t)) == pytest.approx(20 * 41 ** (-1 / 3))
    assert Power()(torch.tensor(0)).dtype == torch.float64


def test_power_by_rounds_or_epochs_falls_after_a_whole_one():
    by_step = [float(Power(exponent=1.0)(torch.tensor(t))) for t in range(4)]
    assert by_step == [1, 1 / 2, 1 / 3, 1 / 4]
    by_three = [float(Power(exponent=1.0, every=3)(torch.tensor(t))) for t in range(8)]
    assert by_three == [1, 1, 1, 1, 1 / 2, 1 / 2, 1 / 2, 1 / 3]


def test_all_steps_of_a_round_have_the_step_size_of_the_round():
    p, q = Problem(3), 4
    found = p.xs(fafed.FedAvg(eta=Power(0.1, every=q, exponent=1.0)), q, 3)
    expected = fedavg(p.x0, p.g, [1 / 3] * 3, q, 3, lambda t: 0.1 / (1 + (t - 1) // q))
    close(found, torch.stack(expected))


def test_theory_is_constant_until_t_is_huge():
    L, N, q, b, rho = 2.0, 16, 10, 20, 0.01
    eta, alpha = TheoryStep(L, N, q, rho), TheoryMomentum(L, N, q, b, rho)
    for t in (0, 1, 10**6):
        assert float(eta(torch.tensor(t))) == pytest.approx(rho / (12 * L * q))
    threshold = 1728 * q**3 * N**2
    assert float(eta(torch.tensor(8 * threshold))) == pytest.approx(rho / (24 * L * q), rel=1e-6)
    assert float(alpha(torch.tensor(1))) <= 0.834 / (b * N * q**2)


def test_momentum_lags_the_step_by_one():
    L, N, q, b, rho = 1.0, 1, 1, 1, 1.0
    t = torch.tensor(5000)
    c = 1 / 12 + 60
    eta = float(TheoryStep(L, N, q, rho)(t - 1))
    assert float(TheoryMomentum(L, N, q, b, rho)(t)) == pytest.approx(min(1, c * eta**2))


def test_numbers_and_schedules_read_alike():
    t = torch.tensor(3)
    assert at(0.1, t) == 0.1
    assert float(at(Power(2.0), t)) == pytest.approx(2 / 4 ** (1 / 3))


def test_bad_constants_are_refused():
    with pytest.raises(fafed.ConfigError, match=r"Power.kappa must be a number > 0, got 0"):
        Power(kappa=0)


def test_equal_and_printable():
    assert Power(2.0) == Power(2.0)
    assert repr(fafed.FAFED(eta=Power(2.0))).startswith("FAFED(eta=Power(kappa=2.0, w=1.0")
