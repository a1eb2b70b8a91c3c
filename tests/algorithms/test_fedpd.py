"""FedPD against its pseudo-code, silent rounds, ID-16, and no bias on quadratics."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedpd import fedpd as transcribed
from two_quadratics import limit

from fafed import ConfigError, FedPD
from fafed.core.schedules import Power

N, Q, R = 4, 3, 8


def compare(p, algorithm, expected, engine="loop"):
    run = p.run(algorithm, Q, R, engine=engine)
    for (x, own, lam), _ in zip(expected, run, strict=True):
        close(run.state.shared.x, x)
        for i in range(N):
            close(run.engine.states[i].local.x, own[i])
            close(run.engine.states[i].local.lam, lam[i])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_equals_the_pseudo_code(mu, engine):
    p = Problem(N)
    expected = transcribed(p.x0, p.g, N, Q, R, lambda t: 0.05, 1 / mu)
    compare(p, FedPD(0.05, mu), expected, engine)


def test_schedules_count_local_steps():
    p, eta = Problem(N), Power(0.1)
    expected = transcribed(p.x0, p.g, N, Q, R, lambda t: eta(torch.tensor(t)), 1.0)
    compare(p, FedPD(eta), expected)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("period", [1, 3])
def test_oracle_two_equals_the_pseudo_code(period, engine):
    p = Problem(N)
    expected = transcribed(p.x0, p.g, N, Q, R, lambda t: 0.05, 1.0, full=p.full, period=period)
    compare(p, FedPD(0.05, oracle="II", period=period), expected, engine)


def test_oracle_two_costs_two_gradients_per_step_and_a_pass_per_period():
    p = Problem(N)
    *_, record = p.run(FedPD(oracle="II", period=4), Q, R)
    assert record.samples == N * (2 * Q * R * p.b + R // 4 * p.examples)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    "settings", [{"every": 3}, {"p": 0.6, "seed": 1}, {"every": 2, "p": 0.5, "oracle": "II"}]
)
def test_silent_rounds_equal_the_pseudo_code_and_send_nothing(settings, engine):
    p, algorithm = Problem(N), FedPD(0.05, **settings)
    heard = [r for r in range(1, R + 1) if algorithm.talks(torch.tensor(r))]
    assert 0 < len(heard) < R
    full = p.full if "oracle" in settings else None
    expected = transcribed(
        p.x0, p.g, N, Q, R, lambda t: 0.05, 1.0, talks=heard.__contains__, full=full
    )
    compare(p, algorithm, expected, engine)
    *_, record = p.run(algorithm, Q, R, engine=engine)
    vector = N * p.d * 8
    assert record.bytes_up == len(heard) * vector
    assert record.bytes_down == (1 + len([r for r in heard if r < R])) * vector


def test_the_coin_is_a_function_of_seed_and_round():
    def coins(seed):
        return [FedPD(p=0.3, seed=seed).talks(torch.tensor(r)) for r in range(1, 2001)]

    assert coins(0) == coins(0)
    assert coins(0) != coins(1)
    assert sum(coins(0)) / 2000 == pytest.approx(0.7, abs=0.04)


@pytest.mark.parametrize("settings", [{}, {"oracle": "II", "period": 3}])
def test_the_mean_dual_is_the_last_move_of_the_mean_solution(settings):
    p, mu = Problem(N), 0.5
    run = p.run(FedPD(0.05, mu, **settings), Q, R)
    before = p.x0
    for _ in run:
        states = [run.engine.states[i].local for i in range(N)]
        mean, dual = (sum(getattr(s, name) for s in states) / N for name in ("x", "lam"))
        close(dual / mu, mean - before)
        close(run.state.shared.x, 2 * mean - before)
        before = mean


def test_with_exact_solutions_the_dual_is_minus_the_gradient():
    p = Problem(N, b="full")
    run = p.run(FedPD(0.1, 8.0), 60, 2)
    for _ in run:
        for i in range(N):
            x, lam, *_ = run.engine.states[i].local
            close(lam, -p.full(i, x), 1e-9)


@pytest.mark.parametrize("oracle", ["I", "II"])
def test_no_bias_on_quadratics(oracle):
    assert limit(FedPD(0.1, 1.0, oracle=oracle), 5, 80) == pytest.approx(0, abs=1e-11)


def test_silent_rounds_bring_a_bias_back_where_clients_differ():
    assert limit(FedPD(0.1, 1.0, every=2), 5, 60) == pytest.approx(-0.226, abs=1e-3)


def test_client_state_grows_with_the_options():
    x = torch.ones(5)
    for settings, vectors in [({}, 2), ({"every": 2}, 3), ({"oracle": "II", "p": 0.1}, 4)]:
        assert sum(leaf.numel() for leaf in FedPD(**settings).join(x)) == vectors * 5


def test_everyone_must_take_part():
    with pytest.raises(ConfigError, match="needs every client"):
        Problem(N).run(FedPD(), Q, participation=0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"mu": 0.0},
        {"oracle": "III"},
        {"period": 0},
        {"every": 1.5},
        {"p": 1.0},
        {"p": -0.1},
        {"seed": True},
    ],
)
def test_wrong_hyper_parameters_are_refused(settings):
    with pytest.raises(ValueError, match=f"FedPD.{next(iter(settings))} must be"):
        FedPD(**settings)
