"""FedAdamW against its pseudo-code."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedadamw import fedadamw as transcribed

from fafed import Adam, ConfigError, FedAdamW

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N
BLOCKS = [6, 1]
SETTINGS = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "decay": 0.1}


def expected(p, eta, weights=UNIFORM, blocks=None, cohorts=None, alpha=0.5):
    settings = (p.x0, p.g, weights, Q, R, eta, alpha, *SETTINGS.values())
    return transcribed(*settings, blocks, cohorts)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("wire", ["compact", "full"])
@pytest.mark.parametrize("v_wire", ["block", "full"])
def test_equals_the_pseudo_code(wire, v_wire, engine):
    p = Problem(N)
    for eta in (lambda t: 0.02, lambda t: 0.05 / t**0.5):
        log = expected(p, eta, blocks=BLOCKS if v_wire == "block" else None)
        found = p.shared(FedAdamW(eta, **SETTINGS, v_wire=v_wire, wire=wire), Q, R, engine=engine)
        for shared, (x, v, D) in zip(found, log, strict=True):
            close(shared.x, x)
            close(shared.v, v[[0, 6]] if v_wire == "block" else v)
            if wire == "full":
                close(shared.d, D)


def test_absent_clients_and_weights():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    weights, cohorts = [0.1, 0.2, 0.3, 0.4], [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    log = expected(p, lambda t: 0.02, weights, BLOCKS, cohorts)
    found = p.xs(FedAdamW(0.02, **SETTINGS, wire="full"), Q, R, participation=cohorts)
    close(found, torch.stack([x for x, _, _ in log]))
    with pytest.raises(ConfigError, match=r"needs every client.*wire='full'"):
        p.run(FedAdamW(), Q, participation=0.5)


def test_one_client_and_one_round_is_adam():
    p = Problem(1)
    found = p.xs(FedAdamW(0.02, alpha=0.0, decay=0.0), 5, 1)
    close(found[-1], p.xs(Adam(0.02), 5, 1)[-1])


@pytest.mark.parametrize(
    ("wires", "up", "down", "kept"),
    [
        ({"v_wire": "block"}, 9, 9, 1),
        ({"v_wire": "full"}, 14, 14, 1),
        ({"v_wire": "block", "wire": "full"}, 9, 16, 0),
        ({"v_wire": "full", "wire": "full"}, 14, 21, 0),
    ],
)
def test_numbers_on_the_wire(wires, up, down, kept):
    p = Problem(N)
    run = p.run(FedAdamW(**wires), Q, R)
    *_, record = run
    assert (record.bytes_up, record.bytes_down) == (R * N * up * 8, R * N * down * 8)
    assert run.engine.states[0].local.x.numel() == kept * p.d
