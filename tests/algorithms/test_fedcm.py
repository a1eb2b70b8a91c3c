"""FedCM against its pseudo-code."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedavg import fedavg
from transcriptions.fedcm import fedcm as transcribed
from two_quadratics import limit

from fafed import ConfigError, FedCM
from fafed.core.schedules import Power

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N
ETA = 0.05


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("wire", ["compact", "full"])
@pytest.mark.parametrize(("alpha", "eta_g"), [(0.1, 1.0), (0.4, 0.6)])
def test_equals_the_pseudo_code(wire, alpha, eta_g, engine):
    p = Problem(N)
    expected = transcribed(p.x0, p.g, UNIFORM, Q, R, lambda t: ETA, alpha, eta_g)
    found = p.shared(FedCM(ETA, alpha, eta_g, wire), Q, R, engine=engine)
    for shared, (x, D) in zip(found, expected, strict=True):
        close(shared.x, x)
        if wire == "full":
            close(shared.d, D)


def test_changing_steps_divide_by_their_sum():
    p, eta = Problem(N), Power(0.1)
    log = transcribed(p.x0, p.g, UNIFORM, Q, R, lambda t: eta(torch.tensor(t)), 0.2)
    for wire in ("compact", "full"):
        close(p.xs(FedCM(eta, 0.2, wire=wire), Q, R), torch.stack([x for x, _ in log]))


def test_absent_clients_and_weights():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    cohorts = [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    log = transcribed(p.x0, p.g, [0.1, 0.2, 0.3, 0.4], Q, R, lambda t: ETA, 0.1, cohorts=cohorts)
    found = p.xs(FedCM(ETA, wire="full"), Q, R, participation=cohorts)
    close(found, torch.stack([x for x, _ in log]))
    with pytest.raises(ConfigError, match=r"needs every client.*wire='full'"):
        p.run(FedCM(), Q, participation=0.5)


def test_alpha_one_is_fedavg():
    p = Problem(N)
    expected = fedavg(p.x0, p.g, UNIFORM, Q, R, lambda t: ETA, 0.7)
    assert torch.equal(p.xs(FedCM(ETA, 1.0, 0.7), Q, R), p.xs(FedCM(ETA, 1.0, 0.7, "full"), Q, R))
    close(p.xs(FedCM(ETA, 1.0, 0.7), Q, R), torch.stack(expected))


def test_one_client_and_one_step_is_the_heavy_ball():
    p, alpha = Problem(1), 0.3
    x, m, expected = p.x0, torch.zeros_like(p.x0), []
    for t in range(1, R + 1):
        m = alpha * p.g(0, t, x) + (1 - alpha) * m
        x = x - ETA * m
        expected.append(x)
    close(p.xs(FedCM(ETA, alpha), 1, R), torch.stack(expected))


def test_a_small_alpha_leaves_little_bias():
    biases = [abs(limit(FedCM(0.1, alpha), 5, 600)) for alpha in (1.0, 0.3, 0.05)]
    assert biases[0] == pytest.approx(0.107498, abs=1e-6)
    assert biases[0] > 2 * biases[1] > 8 * biases[2]


def test_the_wires_differ_in_bytes_and_in_what_is_kept():
    p, vector = Problem(N), N * 7 * 8
    for wire, down, kept in [("compact", 1, 1), ("full", 2, 0)]:
        run = p.run(FedCM(wire=wire), Q, R)
        *_, record = run
        assert (record.bytes_up, record.bytes_down) == (R * vector, down * R * vector)
        assert run.engine.states[0].local.x.numel() == kept * p.d


def test_alpha_zero_is_refused():
    with pytest.raises(ConfigError, match=r"FedCM.alpha must be a number in \(0, 1\], got 0"):
        FedCM(alpha=0)
