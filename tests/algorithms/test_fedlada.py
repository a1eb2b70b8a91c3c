"""FedLADA against its pseudo-code."""

from __future__ import annotations

import itertools

import pytest
import torch
from problem import Problem, close
from transcriptions.fedadamw import fedlada as transcribed

from fafed import ConfigError, FedLADA

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N
BLOCKS = [6, 1]
SETTINGS = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-2}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("wire", ["compact", "full"])
@pytest.mark.parametrize("v_wire", ["block", "full"])
def test_equals_the_pseudo_code(wire, v_wire, engine):
    p, eta_g = Problem(N), 0.7
    blocks = BLOCKS if v_wire == "block" else None
    for eta in (lambda t: 0.02, lambda t: 0.05 / t**0.5):
        settings = (p.x0, p.g, UNIFORM, Q, R, eta, 0.3, *SETTINGS.values(), eta_g)
        log = transcribed(*settings, blocks=blocks)
        algorithm = FedLADA(eta, 0.3, eta_g, **SETTINGS, v_wire=v_wire, wire=wire)
        found = p.shared(algorithm, Q, R, engine=engine)
        for shared, (x, v, D) in zip(found, log, strict=True):
            close(shared.x, x)
            close(shared.v, v[[0, 6]] if v_wire == "block" else v)
            if wire == "full":
                close(shared.d, D)


def test_absent_clients_and_weights():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    weights, cohorts = [0.1, 0.2, 0.3, 0.4], [[0, 1], [2, 3], [0, 3], [1], [0, 1, 2, 3], [2]]
    settings = (p.x0, p.g, weights, Q, R, lambda t: 0.02, 0.1, *SETTINGS.values())
    log = transcribed(*settings, cohorts=cohorts)
    found = p.xs(FedLADA(0.02, **SETTINGS, wire="full"), Q, R, participation=cohorts)
    close(found, torch.stack([x for x, _, _ in log]))
    with pytest.raises(ConfigError, match=r"needs every client.*wire='full'"):
        p.run(FedLADA(), Q, participation=0.5)


def test_the_shared_second_moment_never_becomes_smaller():
    p = Problem(N)
    found = [shared.v for shared in p.shared(FedLADA(0.02, **SETTINGS), Q, R)]
    for old, new in itertools.pairwise(found):
        assert (new >= old).all()
    assert (found[0] >= 1e-4).all()
