"""FedExP against its pseudo-code."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedexp import fedexp as transcribed

from fafed import FedAvg, FedExP

N, Q, R = 4, 3, 8


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("weights", ["uniform", [1.0, 2.0, 3.0, 4.0]])
def test_equals_the_pseudo_code(engine, weights):
    p = Problem(N, weights=weights)
    weight = [1 / N] * N if weights == "uniform" else [w / 10 for w in weights]
    log = transcribed(p.x0, p.g, weight, Q, R, lambda t: 0.05, 1e-4)
    assert max(eta_g for _, eta_g in log) > 1.05
    last = p.shared(FedExP(0.05, 1e-4, average=False), Q, R, engine=engine)
    mean = p.shared(FedExP(0.05, 1e-4), Q, R, engine=engine)
    old = p.x0
    for (x, eta_g), one, two in zip(log, last, mean, strict=True):
        close(one.x, x)
        close(two.last, x)
        close(two.x, (old + x) / 2)
        assert float(one.eta_g) == pytest.approx(eta_g, abs=1e-11)
        old = x


def test_clients_that_agree_make_it_fedavg():
    p = Problem(N, identical=True, b="full")
    found = p.shared(FedExP(0.05, average=False), Q, R)
    assert all(float(shared.eta_g) == 1 for shared in found)
    close(torch.stack([shared.x for shared in found]), p.xs(FedAvg(0.05), Q, R))


def test_the_step_of_the_server_is_in_the_records():
    p = Problem(N)
    *_, record = p.run(FedExP(0.05, 1e-4), Q, R)
    assert record.diagnostics["eta_g"] >= 1


def test_clients_that_do_not_move():
    p = Problem(2)
    p.pool = (torch.zeros_like(p.pool[0]), p.pool[1])  # all gradients are zero
    found = p.shared(FedExP(0.05, eps=0.0), Q, 2)[-1]
    assert torch.equal(found.x, p.x0)
    assert float(found.eta_g) == 1
