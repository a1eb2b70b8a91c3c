"""DOMO against its pseudo-code, and ID-27."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.domo import domo as transcribed
from transcriptions.fedavg import fedavg, local_sgd

from fafed import DOMO, ConfigError
from fafed.core.schedules import Power

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N
MOMENTA = {"mu_s": 0.7, "mu_l": 0.6}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("wire", ["compact", "full"])
@pytest.mark.parametrize("fusion", ["pre", "intra"])
@pytest.mark.parametrize(("eta_g", "beta"), [(1.0, None), (0.6, 0.3)])
def test_equals_the_pseudo_code(fusion, wire, eta_g, beta, engine):
    p = Problem(N)
    fused = 0.7 if beta is None else beta
    expected = transcribed(p.x0, p.g, UNIFORM, Q, R, 0.02, eta_g, 0.7, 0.6, fused, fusion)
    algorithm = DOMO(0.02, eta_g, **MOMENTA, beta=beta, fusion=fusion, wire=wire)
    for shared, (x, m, _) in zip(p.shared(algorithm, Q, R, engine=engine), expected, strict=True):
        close(shared.x, x)
        close(shared.m, m)


def test_weights():
    p = Problem(N, weights=[1.0, 2.0, 3.0, 4.0])
    weights = [0.1, 0.2, 0.3, 0.4]
    expected = transcribed(p.x0, p.g, weights, Q, R, 0.02, 1.0, 0.7, 0.6, 0.7, "pre")
    close(p.xs(DOMO(0.02, **MOMENTA), Q, R), torch.stack([x for x, _, _ in expected]))


@pytest.mark.parametrize("fusion", ["pre", "intra"])
def test_the_new_model_is_the_mean_of_the_final_local_ones(fusion):
    p = Problem(N)
    log = transcribed(p.x0, p.g, UNIFORM, Q, R, 0.02, 1.0, 0.7, 0.6, 0.7, fusion)
    for x, (_, _, ends) in zip(p.xs(DOMO(0.02, **MOMENTA, fusion=fusion), Q, R), log, strict=True):
        close(x, sum(ends) / N)


@pytest.mark.parametrize("fusion", ["pre", "intra"])
def test_without_momenta_it_is_fedavg(fusion):
    p = Problem(N)
    expected = fedavg(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05)
    close(p.xs(DOMO(0.05, mu_s=0.0, mu_l=0.0, fusion=fusion), Q, R), torch.stack(expected))


def test_without_fusion_and_local_momentum_it_is_fedavg_with_server_momentum():
    p, eta, mu_s, eta_g = Problem(N), 0.05, 0.7, 0.6
    x, m, expected = p.x0, torch.zeros_like(p.x0), []
    for r in range(R):
        ends = [local_sgd(x, p.g, i, r * Q + 1, Q, lambda t: eta) for i in range(N)]
        m = mu_s * m + (x - sum(ends) / N) / (eta * Q)
        x = x - eta_g * eta * Q * m
        expected.append(x)
    found = p.xs(DOMO(eta, eta_g, mu_s=mu_s, mu_l=0.0, beta=0.0), Q, R)
    close(found, torch.stack(expected))


def test_compact_wire_saves_a_vector_and_costs_one_kept():
    p, vector = Problem(N), N * 7 * 8
    for wire, down, kept in [("compact", 1, 1), ("full", 2, 0)]:
        run = p.run(DOMO(wire=wire), Q, R)
        *_, record = run
        assert (record.bytes_up, record.bytes_down) == (R * vector, down * R * vector)
        assert run.engine.states[0].local.x.numel() == kept * p.d


def test_compact_wire_needs_everyone_and_says_so_when_built():
    p = Problem(N)
    with pytest.raises(ConfigError, match=r"needs every client.*wire='full'"):
        p.run(DOMO(), Q, participation=0.5)
    *_, record = p.run(DOMO(wire="full"), Q, R, participation=0.5)
    assert record.clients == 2


@pytest.mark.parametrize(
    "settings", [{"eta": Power(0.1)}, {"mu_s": 2.0}, {"beta": -0.1}, {"fusion": "post"}]
)
def test_wrong_hyper_parameters_are_refused(settings):
    with pytest.raises(ValueError, match=f"DOMO.{next(iter(settings))} must be"):
        DOMO(**settings)
