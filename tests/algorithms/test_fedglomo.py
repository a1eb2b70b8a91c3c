"""Fed-GLOMO against its pseudo-code, and ID-26."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from torch import nn
from transcriptions.central import storm
from transcriptions.fedavg import fedavg
from transcriptions.fedglomo import fedglomo as transcribed

from fafed import STORM, FedGLOMO, Model
from fafed.core.schedules import Power
from fafed.data.sources.examples import examples_of
from fafed.training.build import build

N, Q, R = 4, 3, 6
UNIFORM = [1 / N] * N


def compare(p, weights, algorithm, q=Q, beta=None, engine="loop"):
    first = {"step": p.g, "batch": p.anchor, "full": lambda i, t, x: p.full(i, x)}
    expected = transcribed(
        p.x0,
        p.g,
        first[algorithm.anchor],
        weights,
        q,
        R,
        0.05,
        beta or (lambda k: algorithm.beta),
        algorithm.lam,
    )
    for shared, (w, u) in zip(p.shared(algorithm, q, R, engine=engine), expected, strict=True):
        close(shared.x, w)
        close(shared.u, u)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("q", [1, 4])
@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
def test_equals_the_pseudo_code(lam, q, engine):
    compare(Problem(N), UNIFORM, FedGLOMO(0.05, 0.3, lam), q, engine=engine)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("anchor", ["batch", "full"])
def test_anchors_equal_the_pseudo_code(anchor, engine):
    compare(Problem(N), UNIFORM, FedGLOMO(0.05, 0.3, anchor=anchor), engine=engine)


def test_weights_and_a_changing_beta():
    p, beta = Problem(N, weights=[1.0, 2.0, 3.0, 4.0]), Power(0.9)
    steps_made = {k: torch.tensor((k + 1) * Q) for k in range(R)}
    compare(p, [0.1, 0.2, 0.3, 0.4], FedGLOMO(0.05, beta), beta=lambda k: beta(steps_made[k]))


def test_with_one_step_it_is_storm_on_the_mean_gradient():
    p, eta, beta = Problem(N), 0.05, 0.3

    def mean(t, x):
        return sum(p.g(i, t, x) for i in range(N)) / N

    xs = storm(
        p.x0, lambda x: mean(1, x), lambda t, x: mean(t + 1, x), lambda t: eta, lambda t: beta, 9
    )
    close(p.xs(FedGLOMO(eta, beta), 1, 10), torch.stack(xs))


def test_with_one_client_and_one_step_it_is_storm():
    p = Problem(1)
    close(p.xs(FedGLOMO(0.05, 0.3), 1, 12), p.xs(STORM(eta=0.05, alpha=0.3), 1, 12))


def test_without_memories_it_is_fedavg():
    p = Problem(N)
    expected = fedavg(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05)
    close(p.xs(FedGLOMO(0.05, beta=1.0, lam=0.0), Q, R), torch.stack(expected))


def test_costs_of_the_first_and_the_later_rounds():
    p = Problem(N)
    one, *_, last = p.run(FedGLOMO(), Q, R)
    assert one.samples == N * p.b * (1 + 2 * (Q - 1))
    assert last.samples - one.samples == (R - 1) * N * p.b * (2 + 4 * (Q - 1))
    assert one.bytes_up == one.bytes_down == N * p.d * 8


def test_both_lanes_see_the_same_dropout_masks():
    """A vanishing step moves nothing: the displacements from x and from the x before differ
    by the curvature alone, unless their masks differ."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Dropout(0.5), nn.Linear(40, 3)).double()
    shards = [
        (torch.randn(20, 6, dtype=torch.float64), torch.randint(0, 3, (20,))) for _ in range(3)
    ]
    objective = Model(model, nn.functional.cross_entropy)
    source = examples_of(shards, batch_size=5)
    eta = 1e-9
    run = build(FedGLOMO(eta, beta=0.0), objective, source, rounds=3, local_steps=4, engine="loop")
    sizes = [float(run.state.shared.u.norm()) / eta for _ in run]
    assert max(sizes) - min(sizes) < 1e-6


@pytest.mark.parametrize(
    "settings", [{"eta": Power(0.1)}, {"beta": 2.0}, {"lam": 1.1}, {"anchor": "B"}]
)
def test_wrong_hyper_parameters_are_refused(settings):
    with pytest.raises(ValueError, match=f"FedGLOMO.{next(iter(settings))} must be"):
        FedGLOMO(**settings)
