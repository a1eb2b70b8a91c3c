"""Schedules, against the formulas written out."""

from __future__ import annotations

import math

import pytest
import torch
from problem import Problem, close
from transcriptions.fedavg import fedavg

import fafed
from fafed.core.schedules import Cosine, Linear, Power, Step, TheoryMomentum, TheoryStep, at


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


def rates(schedule, steps):
    return [float(schedule(torch.tensor(t))) for t in range(steps + 1)]


def test_step_falls_by_a_factor_after_each_period():
    assert rates(Step(8.0, every=2, factor=0.5), 5) == [8, 8, 8, 4, 4, 2]


def test_linear_and_cosine_without_warm_up():
    straight = [1.0, *(1 - (t - 1) / 8 for t in range(1, 9))]
    assert rates(Linear(1.0).bound(8), 8) == pytest.approx(straight, abs=0)
    bent = [1.0, *((1 + math.cos(math.pi * (t - 1) / 8)) / 2 for t in range(1, 9))]
    assert rates(Cosine(1.0).bound(8), 8) == pytest.approx(bent, abs=1e-16)


def test_warm_up_from_zero_to_the_peak_and_down_to_the_end():
    """Ten steps, the first four warm up: 1/4, 2/4, 3/4, 4/4 of the peak. Six more steps and one
    after the last lead to the end, 1/5 of the peak."""
    left = [1 - k / 7 for k in range(7)]
    expected = [0.5, 0.5, 1, 1.5, 2, *(2 * (0.2 + 0.8 * u) for u in left[1:])]
    assert rates(Linear(2.0, end=0.2, warmup=0.4, over=10), 10) == pytest.approx(
        expected, abs=1e-15
    )
    assert rates(Linear(2.0, end=0.2, warmup=0.4, over=10), 12)[-1] == pytest.approx(0.4)
    bent = [2 * (0.2 + 0.8 * (1 + math.cos(math.pi * (1 - u))) / 2) for u in left]
    found = rates(Cosine(2.0, end=0.2, warmup=0.4, over=10), 10)
    assert found[4:] == pytest.approx(bent, abs=1e-15)


def test_a_schedule_over_the_run_learns_its_length():
    """Three rounds of four steps: transcription and library agree, on both engines."""
    p, q, R = Problem(3), 4, 3
    algorithm = fafed.FedAvg(eta=Linear(0.1, end=0.1, warmup=0.25))

    def eta(t):
        u = (t - 3) / 10
        return 0.1 * t / 3 if t < 3 else 0.1 * (0.1 + 0.9 * (1 - u))

    expected = torch.stack(fedavg(p.x0, p.g, [1 / 3] * 3, q, R, eta))
    for engine in ("loop", "vmap"):
        close(p.xs(algorithm, q, R, engine=engine), expected)
    with pytest.raises(
        fafed.ConfigError, match=r"does not know how long the run is: give it over="
    ):
        algorithm.eta(torch.tensor(1))
    own = fafed.FedAvg(eta=Linear(0.1, over=11))
    with pytest.raises(fafed.ConfigError, match=r"over is 11 steps, the run has 12"):
        p.run(own, q, R)
    assert own.bind_run(11, 1) is own
    assert algorithm.bind_run(3, 4).eta.over == 12


def test_any_function_of_the_step_is_a_schedule():
    p, q = Problem(3), 4
    seen = []

    def eta(t):
        seen.append(t)
        return 0.1 if t < 6 else 0.02

    found = p.xs(fafed.FedAvg(eta=eta), q, 2)
    assert set(seen) == set(range(1, 9))
    assert all(type(t) is int for t in seen)
    close(found, torch.stack(fedavg(p.x0, p.g, [1 / 3] * 3, q, 2, eta)))
    close(p.xs(fafed.FedAvg(eta=eta), q, 2, engine="vmap"), found)
    with pytest.raises(fafed.ConfigError, match=r"step size of step 1 is -1, given"):
        p.xs(fafed.FedAvg(eta=lambda t: -t), q, 1)
    with pytest.raises(fafed.ConfigError, match=r"step size of step 1 is None, .* finite number"):
        p.xs(fafed.FedAvg(eta=lambda t: None), q, 1)
    with pytest.raises(fafed.ConfigError, match=r"FedAvg.eta must be a number > 0 or a schedule"):
        fafed.FedAvg(eta=Linear)
    for wrong in ("linear", {"schedule": "linear", "peak": 0.1}):  # as in a file
        with pytest.raises(fafed.ConfigError, match=r"such as fafed.schedules.Linear\(peak=0.1\)"):
            fafed.FedAvg(eta=wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"peak": 0.0}, r"Linear.peak must be > 0, got 0.0"),
        ({"peak": 1.0, "end": 1.0}, r"Linear.end must be in \[0, 1\), got 1.0"),
        ({"peak": 1.0, "warmup": 50}, r"Linear.warmup must be in \[0, 1\), got 50"),
        ({"peak": 1.0, "over": 0}, r"Linear.over must be a number of steps >= 1 or None, got 0"),
    ],
)
def test_bad_schedules_over_the_run_are_refused(wrong, words):
    with pytest.raises(fafed.ConfigError, match=words):
        Linear(**wrong)
