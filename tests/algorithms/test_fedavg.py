"""FedAvg against its pseudo-code and the closed form of its bias on quadratics."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.fedavg import fedavg as transcribed

from fafed import DOMO, FedAvg
from fafed.core.schedules import Power


@pytest.mark.parametrize("q", [1, 4])
@pytest.mark.parametrize("eta_g", [1.0, 0.7])
@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_equals_the_pseudo_code(q, eta_g, mu):
    p = Problem(4)
    expected = transcribed(p.x0, p.g, [1 / 4] * 4, q, 5, lambda t: 0.05, eta_g, mu)
    close(p.xs(FedAvg(0.05, eta_g, mu), q, 5), torch.stack(expected))


def test_with_momentum_it_is_domo_without_the_clients_part():
    p = Problem(4)
    ours = p.xs(FedAvg(0.05, 0.7, server_momentum=0.8), 3, 5)
    close(ours, p.xs(DOMO(0.05, 0.7, mu_s=0.8, mu_l=0.0, beta=0.0), 3, 5))


def test_momentum_stays_on_the_server():
    p = Problem(4)
    plain, pushed = (list(p.run(FedAvg(0.05, server_momentum=mu), 3, 2)) for mu in (0.0, 0.8))
    assert [r.bytes_down for r in plain] == [r.bytes_down for r in pushed]


def test_schedules_count_local_steps():
    p, eta = Problem(4), Power(0.1)
    expected = transcribed(p.x0, p.g, [1 / 4] * 4, 3, 4, lambda t: eta(torch.tensor(t)))
    close(p.xs(FedAvg(eta), 3, 4), torch.stack(expected))


def test_weights_by_number():
    p = Problem(3, weights=[1.0, 2.0, 5.0])
    expected = transcribed(p.x0, p.g, [1 / 8, 2 / 8, 5 / 8], 3, 4, lambda t: 0.05)
    close(p.xs(FedAvg(0.05), 3, 4), torch.stack(expected))


def test_a_round_averages_over_those_who_took_part():
    p = Problem(4)
    run = p.run(FedAvg(0.05), 3, 1, participation=[[1, 3]])
    list(run)
    alone = [
        transcribed(p.x0, lambda _, t, x, i=i: p.g(i, t, x), [1.0], 3, 1, lambda t: 0.05)[0]
        for i in (1, 3)
    ]
    close(run.state.shared.x, sum(alone) / 2)
