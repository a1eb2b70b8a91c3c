"""STEM in its own indexing, and as FAFED without a scale (ID-2)."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions.stem import stem as transcribed

from fafed import FAFED, PRSGDM, STEM
from fafed.core.schedules import Power, StemMomentum, StemStep


@pytest.mark.parametrize("q", [1, 3, 6])
@pytest.mark.parametrize(
    ("eta", "alpha"),
    [
        (0.05, 0.1),
        (Power(0.1), Power(0.8)),
        (StemStep(0.2, 4, 3, 2), StemMomentum(0.2, 4, 3, 2)),
    ],
)
def test_equals_its_own_pseudo_code(q, eta, alpha):
    p, T = Problem(4), 12

    def own(rate):  # STEM counts from 1 where we count from 0
        return (lambda t: rate) if isinstance(rate, float) else lambda t: rate(torch.tensor(t - 1))

    expected = transcribed(p.x0, p.g, p.g0, 4, q, T, own(eta), own(alpha))
    for shared, (x, d) in zip(p.shared(STEM(eta, alpha), q, T // q), expected, strict=True):
        close(shared.x, x)
        close(shared.m, d)


@pytest.mark.parametrize("more", [{}, {"server_momentum": 0.8}, {"old_grad_scale": 0.5}])
def test_equals_fafed_without_scale_bit_for_bit(more):
    p = Problem(4)
    ours = p.xs(STEM(0.05, 0.1, **more), 4, 5)
    assert torch.equal(ours, p.xs(FAFED(0.05, 0.1, adaptivity="identity", **more), 4, 5))


def test_without_the_old_gradient_it_is_pr_sgd_with_momentum_after_the_opening():
    p, eta, alpha = Problem(4), 0.05, 0.2
    ours = p.xs(STEM(eta, alpha, old_grad_scale=0.0), 3, 4)
    run = p.run(PRSGDM(eta, 1 - alpha), 3, 4)
    d = sum(p.g0(i, p.x0) for i in range(4)) / 4
    run.state = run.state._replace(shared=run.state.shared._replace(x=p.x0 - eta * d, u=d))
    close(ours, torch.stack([run.state.shared.x for _ in run]))


def test_theory_step_and_momentum():
    step = StemStep(L=2.0, N=4, q=5, b=3)
    assert float(step(torch.tensor(0))) == pytest.approx(1 / (16 * 2.0 * 5))  # the cap
    far = 10**12
    assert float(step(torch.tensor(far))) == pytest.approx(step.kappa / (far + 3) ** (1 / 3))
    for sigma in (1.0, 0.3):  # not far beyond the cap, which ends near t = 4096
        own = StemStep(L=0.7, N=1, q=1, b=1, sigma=sigma)
        kappa = sigma ** (2 / 3) / 0.7
        for t in (4100, 5000, 20_000):
            w = max(2 * sigma**2, (16 * 0.7 * kappa) ** 3 - sigma**2 * (t + 1))
            due = kappa / (w + sigma**2 * (t + 1)) ** (1 / 3)
            assert float(own(torch.tensor(t))) == pytest.approx(due, rel=1e-12)
    c = 64 * 4 / 12 + 1 / (24 * step.kappa**3 * 2 * 5)
    momentum = StemMomentum(L=2.0, N=4, q=5, b=3)
    assert float(momentum(torch.tensor(1))) == pytest.approx(c / (16 * 2.0 * 5) ** 2)
