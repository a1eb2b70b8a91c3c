"""The lab engine is the library's engine, and the problems are what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fafed import FAFED, STEM, FedAvg, NaiveAdaptiveFedAvg
from studies.theory import fits
from studies.theory.drift import MeanPrevious
from studies.theory.lab import Lab, PerLane, PerLaneDecaying
from studies.theory.problems import Counterexample, Quadratics, Robust

PROBLEMS = {
    "robust": Robust(),
    "scaled": Robust(clients=3, offsets="gaussian", smallest=0.1, rotated=False, e1_scaled=True),
    "rotated": Robust(clients=2, offsets="gaussian", smallest=0.1, e1_scaled=True),
    "exact": Robust(clients=3, size=1.0, noise=0.0),
    "counterexample": Counterexample(),
    "quadratics": Quadratics(),
}
MAKE = {
    "fafed": lambda eta, alpha: FAFED(eta, alpha, rho=0.1),
    "stem": lambda eta, alpha: STEM(eta, alpha),
    "mean": lambda eta, alpha: MeanPrevious(eta, alpha, adaptivity="identity"),
    "fedavg": lambda eta, alpha: FedAvg(eta),
    "naive": lambda eta, alpha: NaiveAdaptiveFedAvg(eta, 0.5),
}


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_run_of_a_block_is_the_run_of_the_engine(problem, make):
    p, seeds, q, rounds = PROBLEMS[problem], (0, 5), 3, 4
    etas, alphas = [0.05, 0.1], [0.1, 0.4]
    lab = Lab(MAKE[make](PerLane(etas), PerLane(alphas)), p, q=q, lanes=(2,), seeds=seeds)
    block = torch.stack([lab.round().shared.x[..., 0, :] for _ in range(rounds)])
    for lane, (eta, alpha) in enumerate(zip(etas, alphas, strict=True)):
        for place, seed in enumerate(seeds):
            run = p.run(MAKE[make](eta, alpha), rounds=rounds, q=q, seed=seed)
            alone = torch.stack([run.state.shared.x for _ in run])
            torch.testing.assert_close(block[:, lane, place], alone, rtol=0, atol=1e-12)


def test_the_engine_may_use_vmap_too():
    p, algorithm = Robust(), FAFED(0.05, 0.2, rho=0.1)
    loop, vmap = (p.run(algorithm, rounds=3, q=2, engine=e) for e in ("loop", "vmap"))
    for _ in zip(loop, vmap, strict=True):
        torch.testing.assert_close(vmap.state.shared.x, loop.state.shared.x, rtol=0, atol=1e-12)


def test_points_are_where_the_steps_begin():
    p, q = Quadratics(), 3
    lab = Lab(FedAvg(0.1), p, q=q)
    first = lab.round()
    assert float(first.points[0]) == p.x0
    assert float(lab.round().points[0]) == float(first.shared.x)
    one = Lab(FedAvg(0.1), p, q=1)
    assert float(first.points[1]) == pytest.approx(float(one.round().shared.x), abs=1e-15)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_full_gradient_is_the_mean_of_the_clients(problem):
    p = PROBLEMS[problem]
    d = len(p.start(0))
    x = torch.linspace(-1.5, 2.5, 2 * d, dtype=torch.float64).reshape(2, d)
    zero = torch.zeros((), dtype=torch.float64)
    mean = p.gradients(x[:, None], (zero, zero)).mean(-2)
    torch.testing.assert_close(p.full(x), mean, rtol=0, atol=1e-13)


def test_the_value_has_that_gradient():
    for p in (PROBLEMS["robust"], PROBLEMS["rotated"]):
        x = torch.linspace(-1, 2, p.d, dtype=torch.float64).requires_grad_()
        (g,) = torch.autograd.grad(p.value(x), x)
        torch.testing.assert_close(g, p.full(x.detach()), rtol=0, atol=1e-13)


def test_noise_has_mean_zero_and_differs_between_clients_steps_and_seeds():
    p = Robust()
    steps = p.draw(range(3), 0, 400)
    e1, e2 = (torch.stack([noise[k] for noise in steps]) for k in (0, 1))
    for e in (e1, e2):  # (steps, seeds, clients, d)
        assert set(e.unique().tolist()) == {-1.0, 1.0}
        assert abs(float(e.mean())) < 0.01
        assert abs(float((e[1:] * e[:-1]).mean())) < 0.01
        assert abs(float((e[:, 0] * e[:, 1]).mean())) < 0.02
        assert abs(float((e[:, :, 0] * e[:, :, 1]).mean())) < 0.02
    assert abs(float((e1 * e2).mean())) < 0.01
    again = p.draw([2], 100, 1)[0][0][0]
    assert torch.equal(again, e1[100, 2])


def test_f_does_not_depend_on_how_many_clients_there_are():
    x = torch.linspace(-1, 1, 16, dtype=torch.float64)
    values = [float(Robust(clients=n).value(x)) for n in (2, 4, 8, 16)]
    assert values == pytest.approx([values[0]] * 4, abs=1e-13)


def test_given_and_decaying_rates():
    t = torch.tensor(4)
    assert PerLane([0.1, 0.2])(t).shape == (2, 1, 1, 1)
    assert PerLane([0.1, 0.2], after=1)(t).shape == (2, 1, 1, 1, 1)
    assert PerLaneDecaying([0.1])(t).item() == pytest.approx(0.05)


def test_exponents_of_exact_powers():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    samples = (3 * x**-0.6)[:, None] * np.array([0.9, 1.0, 1.1])
    found = fits.exponent(x, samples)
    assert found == pytest.approx((-0.6, -0.6, -0.6), abs=1e-12)


def test_the_interval_of_an_exponent_covers_what_the_seeds_differ_by():
    x = np.array([1.0, 2.0, 4.0, 8.0])
    samples = x[:, None] ** np.array([-0.5, -0.6, -0.7])
    found = fits.exponent(x, samples)
    assert found.low < found.value < found.high
    assert (found.low, found.high) == pytest.approx((-0.7, -0.5))
    assert found == fits.exponent(x, samples)
