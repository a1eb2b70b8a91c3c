"""SCAFFOLD-M against its pseudo-code."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedavg import scaffold
from transcriptions.fedcm import fedcm
from transcriptions.fedcm import scaffold_m as transcribed
from two_quadratics import limit

from fafed import SCAFFOLDM, ConfigError

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("wire", ["compact", "full"])
@pytest.mark.parametrize("eta", [lambda t: 0.05, lambda t: 0.1 / t**0.5])
def test_equals_the_pseudo_code(wire, engine, eta):
    p = Problem(N)
    expected = transcribed(p.x0, p.g, UNIFORM, Q, R, eta, 0.3, 0.6)
    run = p.run(SCAFFOLDM(eta, 0.3, 0.6, wire), Q, R, engine=engine)
    for (x, D, c, ci), _ in zip(expected, run, strict=True):
        close(run.state.shared.x, x)
        for i in range(N):
            close(run.engine.states[i].local.c, ci[i])
        if wire == "full":
            close(run.state.shared.d, D)
            close(run.state.shared.c, c)


def test_absent_clients_and_weights():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    weights, cohorts = [0.1, 0.2, 0.3, 0.4], [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    log = transcribed(p.x0, p.g, weights, Q, R, lambda t: 0.05, 0.1, cohorts=cohorts)
    found = p.xs(SCAFFOLDM(0.05, wire="full"), Q, R, participation=cohorts)
    close(found, torch.stack([x for x, _, _, _ in log]))
    with pytest.raises(ConfigError, match=r"needs every client.*wire='full'"):
        p.run(SCAFFOLDM(), Q, participation=0.5)


def test_alpha_one_is_scaffold():
    p = Problem(N)
    log = scaffold(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, 0.6)
    for wire in ("compact", "full"):
        found = p.xs(SCAFFOLDM(0.05, 1.0, 0.6, wire), Q, R)
        close(found, torch.stack([x for x, _, _ in log]))


def test_clients_that_agree_need_no_correction():
    p = Problem(N, identical=True, b="full")
    log = fedcm(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, 0.2)
    close(p.xs(SCAFFOLDM(0.05, 0.2), Q, R), torch.stack([x for x, _ in log]))


def test_no_bias_of_local_steps():
    assert limit(SCAFFOLDM(0.1, 0.3), 5, 400) == pytest.approx(0, abs=1e-9)


def test_the_wires_differ_in_bytes():
    p, vector = Problem(N), N * 7 * 8
    for wire, up, down in [("compact", 1, 1), ("full", 2, 3)]:
        *_, record = p.run(SCAFFOLDM(wire=wire), Q, R)
        assert (record.bytes_up, record.bytes_down) == (up * R * vector, down * R * vector)
