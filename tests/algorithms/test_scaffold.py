"""SCAFFOLD against its pseudo-code, and ID-17, ID-18."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedavg import fedavg
from transcriptions.fedavg import scaffold as transcribed

from fafed import SCAFFOLD, ConfigError
from fafed.core.schedules import Power

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N


@pytest.mark.parametrize("wire", ["full", "compact"])
@pytest.mark.parametrize("eta_g", [1.0, 0.6])
def test_equals_the_pseudo_code(wire, eta_g):
    p = Problem(N)
    expected = transcribed(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, eta_g)
    run = p.run(SCAFFOLD(0.05, eta_g, wire=wire), Q, R)
    for (x, c, ci), _ in zip(expected, run, strict=True):
        close(run.state.shared.x, x)
        for i in range(N):
            close(run.engine.states[i].local.c, ci[i])
        if wire == "full":
            close(run.state.shared.c, c)


def test_momentum_on_the_server():
    p, cohorts = Problem(N), [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    expected = transcribed(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, 0.6, cohorts, mu=0.8)
    algorithm = SCAFFOLD(0.05, 0.6, server_momentum=0.8, wire="full")
    run = p.run(algorithm, Q, R, participation=cohorts)
    for (x, c, _), record in zip(expected, run, strict=True):
        close(run.state.shared.x, x)
        close(run.state.shared.c, c)
        assert record.bytes_down == record.bytes_up  # it stays on the server


@pytest.mark.parametrize("eta", [lambda t: 0.05, lambda t: 0.1 / t**0.5])
def test_momentum_on_the_server_with_the_compact_wire(eta):
    p = Problem(N)
    expected = transcribed(p.x0, p.g, UNIFORM, Q, R, eta, 0.6, mu=0.8)
    run = p.run(SCAFFOLD(eta, 0.6, server_momentum=0.8), Q, R)
    for (x, _, ci), record in zip(expected, run, strict=True):
        close(run.state.shared.x, x)
        close(run.engine.states[1].local.c, ci[1])
        assert record.bytes_down == record.bytes_up == (record.round) * N * p.d * 8


def test_changing_steps_divide_by_their_sum():
    p, eta = Problem(N), Power(0.1)
    expected = transcribed(p.x0, p.g, UNIFORM, Q, R, lambda t: eta(torch.tensor(t)))
    for wire in ("full", "compact"):
        close(p.xs(SCAFFOLD(eta, wire=wire), Q, R), torch.stack([x for x, _, _ in expected]))


@pytest.mark.parametrize("control", ["full", "batch"])
def test_option_one(control):
    p = Problem(N)
    extra = {
        "full": lambda i, r, x: p.full(i, x),
        "batch": lambda i, r, x: p.anchor(i, r * Q + 1, x),
    }[control]
    expected = transcribed(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, option_one=extra)
    found = p.xs(SCAFFOLD(0.05, control=control, wire="full"), Q, R)
    close(found, torch.stack([x for x, _, _ in expected]))


@pytest.mark.parametrize("weights", ["uniform", [1.0, 2.0, 3.0, 4.0]])
def test_partial_participation(weights):
    p = Problem(N, weights=weights)
    weight = UNIFORM if weights == "uniform" else [w / 10 for w in weights]
    cohorts = [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    expected = transcribed(p.x0, p.g, weight, Q, R, lambda t: 0.05, cohorts=cohorts)
    run = p.run(SCAFFOLD(0.05, wire="full"), Q, R, participation=cohorts)
    for (x, c, ci), _ in zip(expected, run, strict=True):
        close(run.state.shared.x, x)
        close(run.state.shared.c, c)
        close(run.state.shared.c, sum(w * own for w, own in zip(weight, ci, strict=True)))


def test_c_is_the_mean_and_the_last_displacement():
    p = Problem(N)
    run = p.run(SCAFFOLD(0.05, 0.6, wire="full"), Q, R)
    x_old = p.x0
    for _ in run:
        shared = run.state.shared
        own = [run.engine.states[i].local.c for i in range(N)]
        close(shared.c, sum(own) / N)
        close(shared.c, (x_old - shared.x) / (Q * 0.05 * 0.6))
        x_old = shared.x


def test_the_first_round_is_fedavg():
    p = Problem(N)
    found = p.xs(SCAFFOLD(0.05), Q, 1)[0]
    assert torch.allclose(found, fedavg(p.x0, p.g, UNIFORM, Q, 1, lambda t: 0.05)[0], atol=1e-15)


def test_one_client_is_sgd():
    p = Problem(1)
    close(p.xs(SCAFFOLD(0.05), Q, R), torch.stack(fedavg(p.x0, p.g, [1.0], Q, R, lambda t: 0.05)))


def test_compact_wire_halves_the_bytes_and_changes_nothing():
    p = Problem(N)
    full, compact = (p.run(SCAFFOLD(0.05, wire=w), Q, R) for w in ("full", "compact"))
    (*_, a), (*_, b) = full, compact
    close(full.state.shared.x, compact.state.shared.x)
    assert (a.bytes_up, a.bytes_down) == (2 * b.bytes_up, 2 * b.bytes_down)


def test_compact_wire_needs_everyone_and_says_so_when_built():
    p = Problem(N)
    for options in ({"participation": 0.5}, {"failure": 0.1}):
        with pytest.raises(ConfigError, match=r"needs every client.*wire='full'"):
            p.run(SCAFFOLD(), Q, **options)
    with pytest.raises(ConfigError, match="control='drift'"):
        SCAFFOLD(control="full")
