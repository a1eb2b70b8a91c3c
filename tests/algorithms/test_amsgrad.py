"""Local AMSGrad against its pseudo-code, and ID-24."""

from __future__ import annotations

import itertools

import pytest
import torch
from problem import Problem, close
from transcriptions.amsgrad import local_amsgrad as transcribed
from transcriptions.central import amsgrad
from transcriptions.fedavg import fedavg

from fafed import AMSGrad, LocalAMSGrad
from fafed.core.schedules import Power

N, Q, R = 4, 3, 6
COMMON = {"eta": 0.02, "beta1": 0.8, "beta2": 0.9, "eps0": 1e-3}


def compare(p, algorithm, eta=0.02, engine="loop"):
    def rate(t):
        return eta if isinstance(eta, float) else eta(torch.tensor(t))

    expected = transcribed(
        p.x0,
        p.g,
        N,
        Q,
        Q * R,
        rate,
        0.8,
        0.9,
        1e-3,
        timing=algorithm.timing,
        v_sync=algorithm.v_sync,
        warm=p.g0 if algorithm.warm_share else None,
    )
    run = p.run(algorithm, Q, R, engine=engine)
    for (x, vhat, m, v), _ in zip(expected, run, strict=True):
        close(run.state.shared.x, x)
        close(run.state.shared.vhat, vhat)
        for i in range(N):
            close(run.engine.states[i].local.m, m[i])
            if algorithm.v_sync == "local":
                close(run.engine.states[i].local.v, v[i])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("timing", ["fresh", "stale"])
@pytest.mark.parametrize("v_sync", ["local", "average"])
@pytest.mark.parametrize("warm_share", [True, False])
def test_equals_the_pseudo_code(timing, v_sync, warm_share, engine):
    algorithm = LocalAMSGrad(**COMMON, timing=timing, v_sync=v_sync, warm_share=warm_share)
    compare(Problem(N), algorithm, engine=engine)


def test_schedules_count_local_steps():
    eta = Power(0.05)
    compare(Problem(N), LocalAMSGrad(**COMMON | {"eta": eta}), eta)


def test_one_client_and_one_step_is_amsgrad():
    p = Problem(1)
    found = p.xs(LocalAMSGrad(**COMMON, warm_share=False), 1, 20)
    xs = amsgrad(p.x0, lambda t, x: p.g(0, t, x), 0.02, 0.8, 0.9, 1e-3, 20)
    close(found, torch.stack(xs))
    close(found, p.xs(AMSGrad(**COMMON), 1, 20))


def test_the_shared_maximum_never_decreases():
    states = Problem(N).shared(LocalAMSGrad(beta2=0.1), Q, 10)
    for before, after in itertools.pairwise(states):
        assert bool((after.vhat >= before.vhat).all())
    assert bool((states[-1].vhat > states[0].vhat).any())


@pytest.mark.parametrize("timing", ["fresh", "stale"])
def test_with_a_frozen_maximum_and_no_memory_it_is_local_sgd(timing):
    p = Problem(N)
    frozen = LocalAMSGrad(0.02, 0.0, 1.0, eps0=0.16, timing=timing, warm_share=False)
    expected = fedavg(p.x0, p.g, [1 / N] * N, Q, R, lambda t: 0.02 / 0.4)
    close(p.xs(frozen, Q, R), torch.stack(expected))


@pytest.mark.parametrize(
    ("settings", "up", "down", "kept"),
    [
        ({}, 3, 2, 2),
        ({"timing": "stale"}, 2, 2, 2),
        ({"v_sync": "average"}, 3, 3, 1),
    ],
)
def test_message_sizes(settings, up, down, kept):
    p, vector = Problem(N), N * 7 * 8
    algorithm = LocalAMSGrad(**settings, warm_share=False)
    *_, record = p.run(algorithm, Q, R)
    assert (record.bytes_up, record.bytes_down) == (up * R * vector, down * R * vector)
    assert sum(leaf.numel() for leaf in algorithm.join(p.x0)) == kept * p.d


@pytest.mark.parametrize(
    "settings", [{"eps0": 0.0}, {"timing": "late"}, {"v_sync": "max"}, {"warm_share": 1}]
)
def test_wrong_hyper_parameters_are_refused(settings):
    with pytest.raises(ValueError, match=f"LocalAMSGrad.{next(iter(settings))} must be"):
        LocalAMSGrad(**settings)
