"""Every registered algorithm, every law it must obey."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problem import Problem, close, robust

from fafed import ALGORITHMS, SCAFFOLD, ConfigError, tree
from fafed.data.batches import Examples
from fafed.objective import Function
from fafed.training import build

# Vectors up and down in a round, in the opening, and gradients per step: the specification's table.
TABLE = {
    "fafed": (3, 3, 2, 1, 2),
    "stem": (2, 2, 1, 1, 2),
    "naive": (1, 1, 0, 0, 1),
    "fedavg": (1, 1, 0, 0, 1),
    "scaffold": (1, 1, 0, 0, 1),
    "fedadam": (1, 1, 0, 0, 1),
    "fedyogi": (1, 1, 0, 0, 1),
    "fedadagrad": (1, 1, 0, 0, 1),
    "fedams": (1, 1, 0, 0, 1),
}

# Vectors a client keeps between rounds.
KEPT = {"fafed": 1, "stem": 1, "naive": 1, "scaffold": 2}

every = pytest.mark.parametrize("name", ALGORITHMS)


def make(name, **more):
    fields = {f.name for f in dataclasses.fields(ALGORITHMS[name])}
    common = {"eta": 0.05, "rho": 0.1} | more
    return ALGORITHMS[name](**{k: v for k, v in common.items() if k in fields})


def test_every_algorithm_is_in_the_table():
    assert set(TABLE) == set(ALGORITHMS)


@every
def test_vmap_equals_loop(name):
    p = Problem(5)
    close(p.xs(make(name), 3, 4, engine="vmap"), p.xs(make(name), 3, 4, engine="loop"), atol=1e-12)


@settings(max_examples=12, deadline=None)
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
    p = Problem(n, d, examples, b, "full" if b == "full" else b * q, seed)
    loop, vmap = (p.xs(make(name), q, 3, engine=e) for e in ("loop", "vmap"))
    torch.testing.assert_close(loop, vmap, rtol=1e-9, atol=1e-10)


@every
def test_id11_identical_clients_are_one_client(name):
    algorithm = make(name)
    many, one = Problem(4, identical=True, b="full", B="full"), Problem(1, b="full", B="full")
    one.pool = tuple(part[: one.examples] for part in many.pool)
    one.x0 = many.x0
    close(many.xs(algorithm, 3, 5), one.xs(algorithm, 3, 5), atol=1e-12)


@every
def test_id28_the_order_of_clients_does_not_matter(name):
    p = Problem(4, b="full", B="full")
    here = p.xs(make(name), 3, 4)
    p.parts = [p.parts[i] for i in (2, 0, 3, 1)]
    close(p.xs(make(name), 3, 4), here, atol=1e-12)


@every
def test_id28_equal_weights_are_no_weights(name):
    p = Problem(4)
    here = p.xs(make(name), 3, 4)
    close(p.xs(make(name), 3, 4, weights=[0.25] * 4), here, atol=1e-12)
    close(p.xs(make(name), 3, 4, weights="examples"), here, atol=1e-12)


@every
def test_masks_that_sum_to_zero_change_nothing(name):
    """What secure aggregation does to the messages: the mean is all the server sees."""
    p = Problem(4)
    plain = p.xs(make(name), 3, 3)
    run = p.run(make(name), 3, 3)
    add, calls = tree.Mean.add, []

    def masked(self, message, weight):
        noise = np.random.default_rng(len(calls) // 4).normal(size=4)
        shift = (noise - noise.mean())[len(calls) % 4]
        calls.append(shift)
        add(self, tree.map(lambda leaf: leaf + shift, message), weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree.Mean, "add", masked)
        found = torch.stack([run.state.shared.x for _ in run])
    close(found, plain, atol=1e-11)


@every
def test_inputs_are_not_mutated(name):
    p, algorithm = Problem(3), make(name)
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
    p = Problem(3)
    assert torch.equal(p.xs(make(name), 3, 3), p.xs(make(name), 3, 3))


@every
def test_another_seed_other_batches(name):
    p = Problem(3)
    here = p.xs(make(name), 3, 3)
    p.seed = 1
    assert not torch.equal(p.xs(make(name), 3, 3), here)


@every
def test_id30_message_sizes_and_gradients(name):
    up, down, opening_up, opening_down, grads = TABLE[name]
    p, q, R, size = Problem(3), 4, 5, 8
    *_, record = p.run(make(name), q, R)
    vector = p.N * p.d * size
    assert record.bytes_up == (up * R + opening_up) * vector
    assert record.bytes_down == (down * R + opening_down) * vector
    opening_samples = p.B * p.N if opening_up else 0
    assert record.samples == grads * q * R * p.b * p.N + opening_samples
    assert record.gradients == pytest.approx(record.samples / p.b)
    assert record.steps == q * R


@every
def test_client_state_is_as_large_as_the_table_says(name):
    p = Problem(3)
    local = make(name).join(p.x0)
    assert tree.nbytes(local) == KEPT.get(name, 0) * p.d * 8


def test_id30_scaffold_full_wire():
    p = Problem(3)
    *_, record = p.run(SCAFFOLD(0.05, wire="full"), 4, 5)
    assert record.bytes_up == record.bytes_down == 2 * 5 * p.N * p.d * 8


QUADRATIC = {"a": (1.0, 4.0), "b": (0.0, 1.0), "best": 0.8}


def quadratic(x, data):
    a, b = data
    return (a * (x - b) ** 2 / 2).sum()


def limit(algorithm, q, rounds, start=0.3):
    """Where the model ends on two quadratics with exact gradients."""
    pool = tuple(torch.tensor(QUADRATIC[k], dtype=torch.float64) for k in ("a", "b"))
    source = Examples(pool, [np.array([0]), np.array([1])], batch_size="full")
    objective = Function(quadratic, torch.tensor([start], dtype=torch.float64))
    run = build(algorithm, objective, source, rounds=rounds, local_steps=q, engine="loop")
    for _ in run:
        pass
    return float(run.state.shared.x) - QUADRATIC["best"]


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
    for name in set(ALGORITHMS) - {"scaffold"}:
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
