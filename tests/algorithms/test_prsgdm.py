"""PR-SGD with momentum against its pseudo-code, and ID-14."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedavg import fedavg
from transcriptions.prsgdm import heavy_ball
from transcriptions.prsgdm import prsgdm as transcribed

from fafed import PRSGDM
from fafed.core.schedules import Power

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("sync", ["average", "reset", "keep"])
@pytest.mark.parametrize("kind", ["polyak", "nesterov"])
def test_equals_the_pseudo_code(kind, sync, engine):
    p = Problem(N)
    log = transcribed(p.x0, p.g, N, Q, Q * R, lambda t: 0.02, 0.8, kind, sync)
    found = p.xs(PRSGDM(0.02, 0.8, momentum=kind, u_sync=sync), Q, R, engine=engine)
    close(found, torch.stack([x[0] for x, _, _ in log[Q - 1 :: Q]]))


def test_schedules_count_local_steps():
    p, eta = Problem(N), Power(0.1)
    log = transcribed(p.x0, p.g, N, Q, Q * R, lambda t: eta(torch.tensor(t)), 0.8)
    close(p.xs(PRSGDM(eta, 0.8), Q, R), torch.stack([x[0] for x, _, _ in log[Q - 1 :: Q]]))


def test_the_means_follow_heavy_ball_on_the_mean_gradient():
    p, eta, beta = Problem(N), 0.02, 0.8
    log = transcribed(p.x0, p.g, N, Q, Q * R, lambda t: eta, beta)
    x_bar, u_bar = p.x0, torch.zeros_like(p.x0)
    for x, u, grads in log:
        u_bar = beta * u_bar + sum(grads) / N
        x_bar = x_bar - eta * u_bar
        close(sum(u) / N, u_bar)
        close(sum(x) / N, x_bar)
    last = p.shared(PRSGDM(eta, beta), Q, R)[-1]
    close(last.x, x_bar)
    close(last.u, u_bar)


@pytest.mark.parametrize("kind", ["polyak", "nesterov"])
def test_without_memory_is_fedavg(kind):
    p = Problem(N)
    expected = fedavg(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05)
    close(p.xs(PRSGDM(0.05, 0.0, momentum=kind), Q, R), torch.stack(expected))


def test_one_client_is_heavy_ball_for_any_q():
    p = Problem(1)
    expected = heavy_ball(p.x0, lambda t, x: p.g(0, t, x), 0.02, 0.8, 12)
    for q in (1, 4):
        close(p.xs(PRSGDM(0.02, 0.8), q, 12 // q), torch.stack(expected[q - 1 :: q]))


@pytest.mark.parametrize(("sync", "vectors", "kept"), [("reset", 1, 0), ("keep", 1, 1)])
def test_momentum_that_is_not_averaged_is_not_sent(sync, vectors, kept):
    p = Problem(N)
    run = p.run(PRSGDM(u_sync=sync), Q, R)
    *_, record = run
    assert record.bytes_up == record.bytes_down == vectors * R * N * p.d * 8
    assert run.engine.states[0].local.u.numel() == kept * p.d


@pytest.mark.parametrize("settings", [{"beta": 1.1}, {"momentum": "heavy"}, {"u_sync": "none"}])
def test_wrong_hyper_parameters_are_refused(settings):
    with pytest.raises(ValueError, match=f"PRSGDM.{next(iter(settings))} must be"):
        PRSGDM(**settings)
