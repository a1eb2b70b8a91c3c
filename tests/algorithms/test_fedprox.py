"""FedProx against its pseudo-code, ID-15, and the closed form of its bias on quadratics."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from problem import Problem, close
from transcriptions.fedavg import fedavg
from transcriptions.fedprox import fedprox as transcribed
from two_quadratics import QUADRATIC, limit

from fafed import FedPD, FedProx
from fafed.algorithms.fedprox import Message
from fafed.core.schedules import Power

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("mu", [0.0, 0.3, 2.0])
def test_equals_the_pseudo_code(mu, engine):
    p = Problem(N)
    expected = transcribed(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, mu)
    close(p.xs(FedProx(0.05, mu), Q, R, engine=engine), torch.stack(expected))


def test_schedules_and_weights():
    p, eta = Problem(3, weights=[1.0, 2.0, 5.0]), Power(0.1)
    weights = [1 / 8, 2 / 8, 5 / 8]
    expected = transcribed(p.x0, p.g, weights, Q, R, lambda t: eta(torch.tensor(t)), 0.3)
    close(p.xs(FedProx(eta, 0.3), Q, R), torch.stack(expected))


@pytest.mark.parametrize(("q", "mu"), [(3, 0.0), (1, 5.0)])
def test_without_mu_or_with_one_step_it_is_fedavg(q, mu):
    p = Problem(N)
    expected = fedavg(p.x0, p.g, UNIFORM, q, R, lambda t: 0.05)
    close(p.xs(FedProx(0.05, mu), q, R), torch.stack(expected), 1e-15)


def test_the_first_local_solutions_of_fedpd_are_those_of_fedprox():
    """Its duals are still zero, and all start at x."""
    p, mu = Problem(N), 0.7
    run = p.run(FedPD(0.05, mu), Q, 1)
    list(run)
    solutions = [run.engine.states[i].local.x for i in range(N)]
    close(p.xs(FedProx(0.05, mu), Q, 1)[0], sum(solutions) / N)


def bias(weight):
    """Of the fixed point sum W_i b_i / sum W_i."""
    a, b = QUADRATIC["a"], QUADRATIC["b"]
    W = [weight(value) for value in a]
    return sum(w * y for w, y in zip(W, b, strict=True)) / sum(W) - QUADRATIC["best"]


@pytest.mark.parametrize(("q", "eta", "mu"), [(5, 0.1, 1.0), (10, 0.05, 0.1), (5, 0.05, 2.0)])
def test_closed_form_with_q_steps(q, eta, mu):
    expected = bias(lambda a: (1 - (1 - eta * (a + mu)) ** q) * a / (a + mu))
    assert limit(FedProx(eta, mu), q, 60) == pytest.approx(expected, abs=1e-8)


@dataclass(frozen=True)
class Exact(FedProx):
    """Solves each client's problem, which is quadratic, exactly: one Newton step."""

    def local(self, grad, down, local, batches):
        (batch,) = batches
        g = grad(down.x, batch)
        a = grad(down.x + 1, batch) - g
        return local, Message(-g / (a + self.mu))


@pytest.mark.parametrize(("mu", "printed"), [(0.1, -0.28235), (1.0, -0.18462), (10.0, -0.04138)])
def test_closed_form_with_exact_solutions(mu, printed):
    found = limit(Exact(0.1, mu), 1, 120)
    assert found == pytest.approx(bias(lambda a: a / (a + mu)), abs=1e-9)
    assert found == pytest.approx(printed, abs=5e-6)


@pytest.mark.parametrize("settings", [{"mu": -1.0}, {"eta": 0}])
def test_wrong_hyper_parameters_are_refused(settings):
    with pytest.raises(ValueError, match=f"FedProx.{next(iter(settings))} must be"):
        FedProx(**settings)
