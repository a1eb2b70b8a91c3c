"""Every registered algorithm, every law it must obey."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problem import Problem, close, robust
from two_quadratics import limit

from fafed import ALGORITHMS, SCAFFOLD, ConfigError
from fafed.core import tree
from fafed.engines.mean import Mean


class Cost(NamedTuple):
    """What one client sends, gets, computes and keeps: the specification's table."""

    up: int | Fraction  # vectors in a round
    down: int | Fraction
    gradients: int  # in a local step
    kept: int | Fraction = 0  # vectors between rounds
    first_up: int | Fraction = 0  # vectors more in the first round and its opening
    first_down: int = 0
    samples: Callable[[Problem, int, int], int] = lambda p, q, R: 0  # beyond those of the steps


TABLE = {
    "fafed": Cost(3, 3, 2, 1, 2, 1, lambda p, q, R: p.B),
    "stem": Cost(2, 2, 2, 1, 1, 1, lambda p, q, R: p.B),
    "fedavg": Cost(1, 1, 1),
    "prsgdm": Cost(2, 2, 1),
    "fedprox": Cost(1, 1, 1),
    "fedpd": Cost(1, 1, 1, 2),
    "scaffold": Cost(1, 1, 1, 2),
    "fedcm": Cost(1, 1, 1, 1),
    "scaffoldm": Cost(1, 1, 1, 3),
    "feddyn": Cost(1, 1, 1, 1),
    "fedexp": Cost(1, 1, 1),
    "diloco": Cost(1, 1, 1, 2),
    "fedadamw": Cost(1 + Fraction(2, 7), 1 + Fraction(2, 7), 1, 1),  # v of two tensors
    "fedlada": Cost(2, 2, 1, 1),
    "fedmuon": Cost(2, 2, 1, 1),
    "fedpac": Cost(Fraction(20, 7), Fraction(20, 7), 1, 1),  # L has 2 x 2 numbers, R 3 x 3
    "fedadam": Cost(1, 1, 1),
    "fedyogi": Cost(1, 1, 1),
    "fedadagrad": Cost(1, 1, 1),
    "fedams": Cost(1, 1, 1),
    "fedcams": Cost(Fraction(9, 7 * 8), 1, 1, 1),  # 7 signs and one number: 9 bytes
    "localamsgrad": Cost(3, 2, 1, 2, 1, 1, lambda p, q, R: p.B),
    "mime": Cost(2, 3, 2, samples=lambda p, q, R: R * p.examples),
    "mimelite": Cost(2, 2, 1, 0, 1, 1, lambda p, q, R: (R + 1) * p.examples),
    "mimeadam": Cost(2, 4, 2, samples=lambda p, q, R: R * p.examples),
    # one gradient at the first step of a lane, one lane in the first round
    "fedglomo": Cost(2, 2, 4, 0, -1, -1, lambda p, q, R: -(2 * R + 2 * q - 1) * p.b),
    "domo": Cost(1, 1, 1, 1),
    # a vector and two lengths of two layers; x, u, F of 3 x 3 numbers and of one, and three numbers
    # for each layer
    "fedkron": Cost(
        *(Fraction(11, 7), Fraction(11, 7), 1, Fraction(30, 7), Fraction(11, 7), 1),
        lambda p, q, R: p.B,
    ),
    "naive": Cost(1, 1, 1, 1),
    "adam": Cost(1, 1, 1, 2),
    "amsgrad": Cost(1, 1, 1, 3),
    "storm": Cost(1, 1, 2, 2),
    "spider": Cost(1, 1, 2, samples=lambda p, q, R: R * (p.examples - 2 * p.b)),
    "superadam": Cost(1, 1, 2, 3),
}

# FedPAC divides numbers that are 0 but for rounding, in a basis of its own, by eps
SETTINGS = {"fedpac": {"eps": 1e-4}}

every = pytest.mark.parametrize("name", ALGORITHMS)


def make(name, **more):
    fields = {f.name for f in dataclasses.fields(ALGORITHMS[name])}
    common = {"eta": 0.05, "rho": 0.1} | SETTINGS.get(name, {}) | more
    return ALGORITHMS[name](**{k: v for k, v in common.items() if k in fields})


def clients(name, n):
    """A centralised method has the one client that it allows."""
    return make(name).population or n


def test_every_algorithm_is_in_the_table():
    assert set(TABLE) == set(ALGORITHMS)


@every
def test_vmap_equals_loop(name):
    p = Problem(clients(name, 5))
    close(p.xs(make(name), 3, 4, engine="vmap"), p.xs(make(name), 3, 4, engine="loop"), atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(list(ALGORITHMS)),
    n=st.integers(1, 4),
    d=st.integers(1, 5),
    q=st.integers(1, 4),
    b=st.one_of(st.integers(1, 6), st.just("full")),
    examples=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_vmap_equals_loop_on_random_problems(name, n, d, q, b, examples, seed):
    p = Problem(clients(name, n), d, examples, b, "full" if b == "full" else b * q, seed)
    loop, vmap = (p.xs(make(name), q, 3, engine=e) for e in ("loop", "vmap"))
    torch.testing.assert_close(loop, vmap, rtol=1e-9, atol=1e-10)


@every
def test_identical_clients_are_one_client(name):
    algorithm = make(name)
    many = Problem(clients(name, 4), identical=True, b="full", B="full")
    one = Problem(1, b="full", B="full")
    one.pool = tuple(part[: one.examples] for part in many.pool)
    one.x0 = many.x0
    close(many.xs(algorithm, 3, 5), one.xs(algorithm, 3, 5), atol=1e-12)


@every
def test_the_order_of_clients_does_not_matter(name):
    p = Problem(clients(name, 4), b="full", B="full")
    here = p.xs(make(name), 3, 4)
    p.parts = [p.parts[i] for i in (2, 0, 3, 1) if i < p.N]
    close(p.xs(make(name), 3, 4), here, atol=1e-12)


@every
def test_equal_weights_are_no_weights(name):
    p = Problem(clients(name, 4))
    here = p.xs(make(name), 3, 4)
    close(p.xs(make(name), 3, 4, weights=[0.25] * p.N), here, atol=1e-12)
    close(p.xs(make(name), 3, 4, weights="examples"), here, atol=1e-12)


@every
def test_masks_that_sum_to_zero_change_nothing(name):
    """What secure aggregation does to the messages: the mean is all the server sees."""
    p = Problem(clients(name, 4))
    plain = p.xs(make(name), 3, 3)
    run = p.run(make(name), 3, 3)
    add, calls = Mean.add, []

    def masked(self, message, weight):
        noise = np.random.default_rng(len(calls) // p.N).normal(size=p.N)
        shift = (noise - noise.mean())[len(calls) % p.N]
        calls.append(shift)
        add(self, tree.map(lambda leaf: leaf + shift, message), weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mean, "add", masked)
        found = torch.stack([run.state.shared.x for _ in run])
    close(found, plain, atol=1e-11)


@every
def test_inputs_are_not_mutated(name):
    p, algorithm = Problem(clients(name, 3)), make(name)
    run = p.run(algorithm, 3, 2)
    next(iter(run))
    before = run.state
    copy = tree.map(torch.clone, before.shared)
    pool = tuple(part.clone() for part in p.pool)
    states = tree.map(torch.clone, run.engine.states)
    kept = list(run.engine.states)
    run.round()
    for a, b in zip(tree.leaves(before.shared), tree.leaves(copy), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(tree.leaves(kept), tree.leaves(states), strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(p.pool, pool, strict=True))


@every
def test_same_seed_same_digits(name):
    p = Problem(clients(name, 3))
    assert torch.equal(p.xs(make(name), 3, 3), p.xs(make(name), 3, 3))


@every
def test_another_seed_other_batches(name):
    p = Problem(clients(name, 3))
    here = p.xs(make(name), 3, 3)
    p.seed = 1
    assert not torch.equal(p.xs(make(name), 3, 3), here)


@every
def test_message_sizes_and_gradients(name):
    cost, p, q, R = TABLE[name], Problem(clients(name, 3)), 4, 5
    *_, record = p.run(make(name), q, R)
    vector = p.N * p.d * 8
    assert record.bytes_up == (cost.up * R + cost.first_up) * vector
    assert record.bytes_down == (cost.down * R + cost.first_down) * vector
    assert record.samples == p.N * (cost.gradients * q * R * p.b + cost.samples(p, q, R))
    assert record.gradients == pytest.approx(record.samples / p.b)
    assert record.steps == q * R


@every
def test_client_state_is_as_large_as_the_table_says(name):
    p = Problem(clients(name, 3))
    run = p.run(make(name), 2, 1)
    list(run)
    for local in (run.algorithm.join(p.x0), run.engine.states[0].local):
        assert tree.nbytes(local) == TABLE[name].kept * p.d * 8


def test_scaffold_full_wire():
    p = Problem(3)
    *_, record = p.run(SCAFFOLD(0.05, wire="full"), 4, 5)
    assert record.bytes_up == record.bytes_down == 2 * 5 * p.N * p.d * 8


@pytest.mark.parametrize(
    ("q", "eta", "bias"),
    [(5, 0.02, -0.019862), (5, 0.1, -0.107498), (10, 0.02, -0.044379), (10, 0.1, -0.195874)],
)
def test_fedavg_reaches_the_biased_fixed_point(q, eta, bias):
    assert limit(make("fedavg", eta=eta), q, 300) == pytest.approx(bias, abs=1e-6)


@pytest.mark.parametrize(
    ("alpha", "bias", "rounds"),
    [(1.0, -0.1075, 100), (0.9, -0.1061, 100), (0.1, -0.0478, 200), (0.01, -0.00715, 1200)],
)
def test_small_alpha_removes_the_drift(alpha, bias, rounds):
    assert limit(make("stem", eta=0.1, alpha=alpha), 5, rounds) == pytest.approx(bias, abs=6e-5)


def test_scaffold_has_no_bias():
    assert limit(make("scaffold", eta=0.1), 5, 400) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedams"])
def test_server_adaptivity_cannot_remove_drift(name):
    bias = limit(make(name, eta=0.02, eta_g=0.002, beta1=0.0), 5, 400, start=0.75)
    assert bias == pytest.approx(-0.019862, abs=1e-5)


def test_partial_participation_runs_with_everyone_else():
    p = Problem(6)
    for name in ALGORITHMS:
        if make(name).requires_all_clients or make(name).population:
            continue
        *_, record = p.run(make(name), 2, 4, participation=0.5)
        assert record.clients == 3
        assert record.bytes_up < p.run(make(name), 2, 4).round().bytes_up * 4
    for options in ({"participation": 0.0}, {"participation": 1.5}, {"failure": 1.0}):
        with pytest.raises(ConfigError):
            p.run(make("fedavg"), 2, 4, **options)


def test_function_objective_is_the_robust_loss():
    p = Problem(1, b="full")
    x = p.x0.clone().requires_grad_()
    rows = tuple(part[p.parts[0]] for part in p.pool)
    (g,) = torch.autograd.grad(robust(x, rows), x)
    close(g, p.full(0, p.x0))
