"""FedAdam, FedYogi, FedAdagrad, FedAMS against their pseudo-code, and ID-19..ID-22."""

from __future__ import annotations

import itertools

import pytest
import torch
from problem import Problem, close
from transcriptions.central import adam
from transcriptions.fedavg import fedavg, server_optimiser

from fafed import FedAdagrad, FedAdam, FedAMS, FedYogi
from fafed.core.schedules import Linear

N, Q, R = 4, 3, 8
UNIFORM = [1 / N] * N
COMMON = {"eta": 0.05, "eta_g": 0.03, "beta1": 0.8, "tau": 0.01}


@pytest.mark.parametrize(
    ("algorithm", "rule"),
    [
        (FedAdam(**COMMON, beta2=0.7), "adam"),
        (FedAdam(**COMMON, beta2=0.7, v0=0.5), "adam"),
        (FedYogi(**COMMON, beta2=0.7), "yogi"),
        (FedAdagrad(**COMMON), "adagrad"),
        (FedAMS(**COMMON, beta2=0.7), "ams-max"),
        (FedAMS(**COMMON, beta2=0.7, option="amsgrad"), "ams-amsgrad"),
    ],
)
def test_equals_the_pseudo_code(algorithm, rule):
    p = Problem(N)
    v0 = getattr(algorithm, "v0", None)
    expected = server_optimiser(
        p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, 0.03, rule, 0.8, 0.7, 0.01, v0
    )
    for shared, (x, v, vhat) in zip(p.shared(algorithm, Q, R), expected, strict=True):
        close(shared.x, x)
        close(shared.v, v)
        if rule.startswith("ams"):
            close(shared.vhat, vhat)


@pytest.mark.parametrize(
    ("algorithm", "rule"),
    [
        (FedAdam(**COMMON, beta2=0.7, bias_correction=True), "adam"),
        (FedAMS(**COMMON, beta2=0.7, bias_correction=True), "ams-max"),
        (FedAMS(**COMMON, beta2=0.7, option="amsgrad", bias_correction=True), "ams-amsgrad"),
    ],
)
def test_bias_correction_equals_the_public_code(algorithm, rule):
    p = Problem(N)
    setting = (0.03, rule, 0.8, 0.7, 0.01)
    expected = server_optimiser(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, *setting, bias=True)
    close(p.xs(algorithm, Q, R), torch.stack([x for x, _, _ in expected]))


@pytest.mark.parametrize(
    ("cls", "rule"),
    [(FedAdam, "adam"), (FedYogi, "yogi"), (FedAdagrad, "adagrad"), (FedAMS, "ams-max")],
)
def test_the_step_of_the_server_follows_a_schedule(cls, rule):
    p, falls = Problem(N), Linear(0.03, over=Q * R)
    memory = {} if cls is FedAdagrad else {"beta2": 0.7}
    expected = server_optimiser(
        *(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05),
        lambda t: 0.03 * (1 - (t - 1) / (Q * R)),
        *(rule, 0.8, 0.7, 0.01),
    )
    found = p.xs(cls(**COMMON | {"eta_g": falls}, **memory), Q, R)
    close(found, torch.stack([x for x, _, _ in expected]))


def test_fedadam_with_denominator_one_is_fedavg():
    p, tau = Problem(N), 0.25
    algorithm = FedAdam(eta=0.05, eta_g=0.7, beta1=0.0, beta2=1.0, tau=tau, v0=(1 - tau) ** 2)
    expected = fedavg(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, 0.7)
    close(p.xs(algorithm, Q, R), torch.stack(expected))


def test_fedadam_with_one_step_is_adam():
    p, eta = Problem(N), 0.05
    tau = 0.01
    found = p.xs(FedAdam(eta=eta, eta_g=0.03, beta1=0.8, beta2=0.7, tau=tau), 1, R)

    def mean(t, x):
        return sum(p.g(i, t, x) for i in range(N)) / N

    close(found, torch.stack(adam(p.x0, mean, 0.03, 0.8, 0.7, tau / eta, (tau / eta) ** 2, R)))


def test_fedyogi_moves_v_little_and_equals_fedadam_at_zero():
    p, beta2 = Problem(N), 0.7
    yogi = FedYogi(**COMMON, beta2=beta2)
    x_old, v_old, t = p.x0, yogi.init(p.x0).v, 1
    for shared in p.shared(yogi, Q, R):
        ends = [local(p, x_old, i, t) for i in range(N)]
        D = sum(ends) / N - x_old
        assert bool(((shared.v - v_old).abs() <= (1 - beta2) * D**2 + 1e-16).all())
        x_old, v_old, t = shared.x, shared.v, t + Q
    at_zero = {"eta": 0.05, "v0": 0.0}
    a, b = (p.xs(cls(**at_zero), Q, 1) for cls in (FedYogi, FedAdam))
    close(a, b, 1e-14)


def local(p, x, i, t):
    for k in range(Q):
        x = x - 0.05 * p.g(i, t + k, x)
    return x


def test_fedams_maximum_never_decreases_and_starts_at_its_floor():
    p = Problem(N)
    states = p.shared(FedAMS(**COMMON, beta2=0.1), Q, R)
    assert bool((states[0].vhat >= 0.01**2).all())
    for before, after in itertools.pairwise(states):
        assert bool((after.vhat >= before.vhat).all())


def test_while_v_grows_fedams_is_fedadam_from_zero():
    """beta2 = 1 - 1e-3 and few rounds: v only grows, so its maximum is v itself."""
    p, common = Problem(N, b="full"), {**COMMON, "beta2": 0.999}
    a = p.shared(FedAMS(**common, option="amsgrad"), Q, 4)
    assert all(torch.equal(s.v, s.vhat) for s in a)
    b = p.shared(FedAdam(**common, v0=0.0), Q, 4)
    close(torch.stack([s.x for s in a]), torch.stack([s.x for s in b]))


def test_step_is_bounded_by_eta_g_without_memory():
    p = Problem(N)
    found = p.xs(FedAdam(0.05, 0.03, beta1=0.0, beta2=0.0), Q, R)
    moves = torch.diff(torch.cat([p.x0[None], found]), dim=0)
    assert bool((moves.abs() < 0.03).all())


@pytest.mark.parametrize("cls", [FedAdam, FedAMS])
def test_bias_correction_makes_the_first_step_independent_of_the_betas(cls):
    p, tau = Problem(N), 1e-12
    kind = {"v0": 0.0} if cls is FedAdam else {"option": "amsgrad"}
    one, two = (
        p.xs(cls(eta_g=0.03, beta1=b, beta2=b, tau=tau, bias_correction=True, **kind), Q, 1)
        for b in (0.5, 0.9)
    )
    close(one, two, 1e-9)
