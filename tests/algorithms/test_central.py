"""The centralised references against their pseudo-code, torch's own, and each other."""

from __future__ import annotations

import pytest
import torch
from problem import Problem, close
from transcriptions import central

from fafed import (
    ALGORITHMS,
    FAFED,
    SPIDER,
    STORM,
    Adam,
    AMSGrad,
    ConfigError,
    FedAdam,
    FedAvg,
    SuperAdam,
)
from fafed.core.schedules import Power, Schedule
from fafed.report.algorithm_cards import card

T = 12
CENTRAL = [name for name, cls in ALGORITHMS.items() if cls().population == 1]


def oracle(p):
    return lambda t, x: p.g(0, t, x)


def compare(algorithm, expected, p=None):
    """Any q gives the same iterates."""
    p = p or Problem(1)
    for q, engine in [(1, "loop"), (4, "loop"), (4, "vmap")]:
        found = p.xs(algorithm, q, T // q, engine=engine)
        close(found, torch.stack(expected[q - 1 :: q]))


def test_storm_with_its_own_steps():
    p = Problem(1)
    compare(STORM(0.3, 0.5, 20.0), central.storm_own(p.x0, oracle(p), 0.3, 0.5, 20.0, T))


@pytest.mark.parametrize(("eta", "alpha"), [(0.05, 0.3), (Power(0.1), Power(0.9))])
def test_storm_with_given_steps(eta, alpha):
    p, g = Problem(1), oracle(Problem(1))

    def own(rate):  # the transcription counts from 0
        return (lambda t: rate) if isinstance(rate, float) else lambda t: rate(torch.tensor(t + 1))

    xs = central.storm(
        p.x0, lambda x: g(1, x), lambda t, x: g(t + 1, x), own(eta), own(alpha), T - 1
    )
    compare(STORM(eta=eta, alpha=alpha), xs)


def test_storm_derives_alpha_from_a_given_step():
    p = Problem(1)
    for eta in (0.05, Constant()):
        found = p.xs(STORM(eta=eta, c=70.0), 4, 3)
        close(found, p.xs(STORM(eta=0.05, alpha=0.175), 4, 3))


class Constant(Schedule):
    def __call__(self, t):
        return torch.tensor(0.05, dtype=torch.float64)


def test_storm_with_exact_gradients_is_fafed_without_scale():
    """FAFED's opening step is then STORM's first."""
    p = Problem(1, b="full", B="full")
    storm = p.xs(STORM(eta=0.05, alpha=0.2), 1, T + 1)
    fafed = p.xs(FAFED(eta=0.05, alpha=0.2, adaptivity="identity"), 1, T)
    close(storm[1:], fafed)


@pytest.mark.parametrize("step", ["normalised", "constant"])
@pytest.mark.parametrize("anchor", ["full", "batch"])
@pytest.mark.parametrize("q", [1, 4])
def test_spider(step, anchor, q):
    p = Problem(1)
    large = {"full": lambda t, x: p.full(0, x), "batch": lambda t, x: p.anchor(0, t, x)}[anchor]
    xs = central.spider(p.x0, oracle(p), large, q, T, 0.05, normalised=step == "normalised")
    for engine in ("loop", "vmap"):
        found = p.xs(SPIDER(0.05, step, anchor), q, T // q, engine=engine)
        close(found, torch.stack(xs[q - 1 :: q]))


def test_spider_stays_where_the_gradient_is_zero():
    p = Problem(1)
    p.pool = tuple(torch.zeros_like(part) for part in p.pool)
    close(p.xs(SPIDER(0.05), 3, 2), torch.stack([p.x0] * 2), 0.0)


@pytest.mark.parametrize("momentum", ["storm", "ema"])
@pytest.mark.parametrize("corrected", [False, True])
def test_superadam(momentum, corrected):
    p, numbers = Problem(1), (0.1, 0.8, 5.0, 2.0, 0.7, 0.01)
    xs = central.superadam_own(
        p.x0, oracle(p), *numbers, T, tau=int(momentum == "storm"), corrected=corrected
    )
    compare(SuperAdam(*numbers, momentum=momentum, bias_correction=corrected), xs)


def test_superadam_with_a_given_alpha():
    p, g = Problem(1), oracle(Problem(1))
    xs = central.superadam(
        p.x0,
        lambda x: g(1, x),
        lambda t, x: g(t + 1, x),
        0.1,
        lambda t: 1 / (3 + t + 1) ** (1 / 3),
        lambda t: 0.2,
        0.9,
        0.01,
        T - 1,
    )
    compare(SuperAdam(0.1, k=1.0, s=3.0, beta=0.9, rho=0.01, alpha=0.2), xs)


def test_superadam_with_exact_gradients_is_fafed():
    """eta_t = gamma mu_t; FAFED's step 0 is SuperAdam's step 1."""
    p = Problem(1, b="full", B="full")
    ours = p.xs(SuperAdam(0.1, k=1.0, s=3.0, beta=0.9, rho=0.01, alpha=0.2), 1, T + 1)
    fafed = FAFED(eta=Power(0.1, 4.0), alpha=0.2, beta=0.9, rho=0.01, first_step_precond=True)
    close(ours[1:], p.xs(fafed, 1, T))


def torch_optimiser(p, make):
    x = p.x0.clone().requires_grad_()
    optimiser = make([x])
    xs = []
    for t in range(1, T + 1):
        x.grad = p.g(0, t, x.detach())
        optimiser.step()
        xs.append(x.detach().clone())
    return xs


def test_adam_is_torchs():
    p = Problem(1)
    xs = torch_optimiser(p, lambda x: torch.optim.Adam(x, 0.02, (0.8, 0.7), 0.01))
    compare(Adam(0.02, 0.8, 0.7, 0.01), xs)


def test_adam_without_bias_correction():
    p = Problem(1)
    xs = central.adam(p.x0, oracle(p), 0.02, 0.8, 0.7, 0.01, 0.3, T)
    compare(Adam(0.02, 0.8, 0.7, 0.01, v0=0.3, bias_correction=False), xs)


def test_fedadam_with_one_client_and_one_step_is_adam():
    p, eta, tau = Problem(1), 0.05, 0.01
    eps = tau / eta
    ours = p.xs(Adam(0.03, 0.8, 0.7, eps, v0=eps**2, bias_correction=False), 1, T)
    close(ours, p.xs(FedAdam(eta=eta, eta_g=0.03, beta1=0.8, beta2=0.7, tau=tau), 1, T))


def test_amsgrad():
    p = Problem(1)
    compare(
        AMSGrad(0.02, 0.8, 0.3, 1e-4), central.amsgrad(p.x0, oracle(p), 0.02, 0.8, 0.3, 1e-4, T)
    )


@pytest.mark.parametrize("name", CENTRAL)
def test_more_than_one_client_is_refused_when_the_run_is_built(name):
    with pytest.raises(ConfigError, match=r"runs with 1 client, got 3: put all data into one"):
        Problem(3).run(ALGORITHMS[name](), 2)
    assert Problem(3).run(FedAvg(), 2)


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (STORM, {"k": 0.0}),
        (STORM, {"alpha": 2.0}),
        (STORM, {"eta": "own"}),
        (SPIDER, {"step": "long"}),
        (SuperAdam, {"rho": 0.0}),
        (SuperAdam, {"eta": Power(0.1)}),
        (Adam, {"tau": 0.0}),
        (Adam, {"v0": -1.0}),
        (AMSGrad, {"eps0": 0.0}),
    ],
)
def test_wrong_hyper_parameters_are_refused(cls, settings):
    with pytest.raises(ValueError, match=f"{cls.__name__}.{next(iter(settings))} must be"):
        cls(**settings)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("adam", "1412.6980"),
        ("amsgrad", "1904.09237"),
        ("storm", "1905.10018"),
        ("spider", "1807.01695"),
        ("superadam", "2106.08208"),
    ],
)
def test_each_is_listed_with_its_own_paper_and_one_client(name, number):
    listed = card(name)
    assert number in listed.paper
    assert (listed.up, listed.down) == (1, 1)
