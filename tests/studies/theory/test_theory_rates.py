"""Rates at a small size, with fixed seeds: the exponents are ordered as the theory orders them."""

from __future__ import annotations

import numpy as np
import pytest

from studies.theory import protocols, rates, rates_accuracy
from studies.theory.protocols import Horizons
from studies.theory.rates import Size

SMALL = Size(
    seeds=4,
    horizons=tuple(2**k for k in range(7, 12)),
    many_horizon=512,
    grid_horizons=(64, 256),
    grid_seeds=2,
    growing_horizons=(256, 512, 1024),
    scaling_horizon=400,
)


def test_schedules_have_the_powers_of_the_theory():
    for method, power_T, power_N in (("FedAvg", -1 / 2, 1 / 2), ("STEM", -1 / 3, 2 / 3)):
        eta = [
            float(protocols.theory_rates(method, N, T)[0])
            for N, T in ((4, 512), (4, 4096), (8, 512))
        ]
        assert np.log(eta[1] / eta[0]) / np.log(8) == pytest.approx(power_T)
        assert np.log(eta[2] / eta[0]) / np.log(2) == pytest.approx(power_N)
    eta, alpha = protocols.theory_rates("STEM", 4, 4096)
    assert alpha == pytest.approx(8 * eta**2 / 4)


def test_local_steps_grow_as_the_theories_allow():
    assert [rates_accuracy.growing_q("FAFED", T) for T in (1024, 8192, 32768)] == [4, 8, 13]
    assert [rates_accuracy.growing_q("FedAvg", T) for T in (1024, 32768)] == [2, 5]


def check_exponents_satisfy_the_loosened_criterion(finding):
    powers = finding.lines["powers"]
    of = {m: powers.horizon_power[m].value for m in protocols.METHODS}
    assert -0.56 < of["FedAvg"] < -0.33
    assert -0.75 < of["STEM"] < -0.5
    assert -0.75 < of["FAFED"] < -0.38
    assert of["STEM"] < of["FedAvg"] - 0.08
    assert powers.gap.low < powers.gap.value < powers.gap.high
    assert powers.gap.value == pytest.approx(of["FAFED"] - of["FedAvg"], abs=1e-12)


def test_the_criterion_itself():
    estimate = rates.Estimate
    of = {"FedAvg": -0.48, "STEM": -0.59, "FAFED": -0.625}
    good = {m: estimate(v, v, v) for m, v in of.items()}
    powers = rates.Powers({}, {}, good, good, estimate(-0.145, -0.15, -0.14))
    assert powers.passes
    assert not powers._replace(gap=estimate(-0.05, -0.1, 0)).passes
    assert not powers._replace(horizon_power=good | {"STEM": estimate(-0.5, -0.5, -0.5)}).passes


def check_costs_are_those_of_the_engine(finding):
    spent = finding.lines["costs"].spent
    T, d = np.array(SMALL.horizons), 16
    assert (spent["FAFED"]["steps"] == T).all()
    assert (spent["FAFED"]["rounds"] == T / 4).all()
    assert (spent["FedAvg"]["samples"] == 4 * T).all()
    assert (spent["STEM"]["samples"] == 8 * T + 4 * 4).all()  # two per step, and the opening's
    assert (spent["FedAvg"]["bytes"] == 2 * 4 * d * 8 * T / 4).all()
    assert (spent["FAFED"]["bytes"] == 6 * 4 * d * 8 * T / 4 + 3 * 4 * d * 8).all()


def test_costs_interpolate_on_log_scales():
    accuracy, cost = np.array([0.4, 0.2, 0.1]), np.array([10.0, 100.0, 1000.0])
    assert rates_accuracy._needed(accuracy, cost, 0.2) == pytest.approx(100)
    assert rates_accuracy._needed(accuracy, cost, 0.2 * 2**0.5) == pytest.approx(10**1.5)
    assert rates_accuracy._needed(accuracy, cost, 0.05) is None
    assert rates_accuracy._common_accuracy([accuracy, np.array([0.5, 0.123])]) == 0.13


def check_bad_scaling_is_what_the_matrix_is_for(finding):
    best = finding.lines["scaling"].best
    assert best["FAFED", "0.1"] < best["STEM", "0.1"]
    assert best["FAFED", "0.01"] < best["STEM", "0.01"] - 0.5
    assert abs(best["FAFED", "0.01, rotated"] - best["STEM", "0.01, rotated"]) < 0.5


def check_mean_previous_iterate_costs_accuracy(finding):
    rows = {q: (own, mean) for q, own, mean in finding.tables["q"].rows}
    for q in (4, 8):  # at this horizon eta is too large for more
        own, mean = rows[q]
        assert mean > own


def test_processes_do_not_change_a_digit():
    task = Horizons("FAFED", 2, (64,), 4, 2)
    alone, apart = (protocols.carry_out([task], jobs)[task] for jobs in (1, 2))
    np.testing.assert_array_equal(alone, apart)


def check_claims_and_figures_come_out(finding, tmp_path):
    from studies.theory import publish

    names = {path.name for path in publish.write(rates, finding, tmp_path)}
    assert {
        "rates.json",
        "rates.md",
        "rates.svg",
        "rates-accuracy.png",
        "rates-scaling.svg",
    } < names
    assert all(claim.says and claim.measured for claim in finding.claims)


@pytest.mark.slow
def test_the_finding(tmp_path):
    """One test, so that what takes seconds is measured once, however tests are dealt out."""
    finding = rates.measure(SMALL)
    check_exponents_satisfy_the_loosened_criterion(finding)
    check_costs_are_those_of_the_engine(finding)
    check_bad_scaling_is_what_the_matrix_is_for(finding)
    check_mean_previous_iterate_costs_accuracy(finding)
    check_claims_and_figures_come_out(finding, tmp_path)
