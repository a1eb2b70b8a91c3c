"""Wrong versions that look right, of FAFED and others. Each must fail what the true one passes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from problem import Problem, close
from torch import nn
from transcriptions.diloco import diloco
from transcriptions.fafed import fafed as transcribed
from transcriptions.fedavg import server_optimiser
from transcriptions.fedcm import fedcm
from transcriptions.feddyn import feddyn

import fafed
from fafed import FAFED, DiLoCo, FedAMS, FedCM, FedDyn
from fafed.algorithms.fafed import Local, Message
from fafed.algorithms.fedopt import unbias
from fafed.core.schedules import StemStep, at
from fafed.data.sources.base import ClientBatches
from fafed.data.sources.examples import Examples

N, Q, R = 4, 4, 5


@dataclass(frozen=True)
class PreviousIsMean(FAFED):
    """Takes the broadcast model for the client's own last iterate."""

    def local(self, grad, down, local, batches):
        own_step = at(self.eta, down.t) * down.m / self.scale(down.v)
        return super().local(grad, down, Local(down.x + own_step), batches)


@dataclass(frozen=True)
class PreviousIsCurrent(FAFED):
    """Loads the broadcast model over the kept iterate."""

    def local(self, grad, down, local, batches):
        return super().local(grad, down, Local(down.x), batches)


@dataclass(frozen=True)
class LateScale(FAFED):
    """The server takes its step with the scale of the round before."""

    def server(self, shared, mean, info):
        right = super().server(shared, mean, info)
        x = mean.x - at(self.eta, right.t) * mean.m / self.scale(shared.v)
        return right._replace(x=x)


@dataclass(frozen=True)
class ScaleMovesLocally(FAFED):
    """Refreshes A from the client's own v at every local step."""

    def local(self, grad, down, local, batches):
        x, m, v, t, _ = down
        before = local.x
        for k, batch in enumerate(batches, start=1):
            g = grad(x, batch)
            m = g + (1 - at(self.alpha, t + k)) * (m - grad(before, batch))
            v = self.collect(v, g)
            before, x = x, x - at(self.eta, t + k) * m / self.scale(v)
        return Local(before), Message(before, m, v)


@dataclass(frozen=True)
class SquareOfTheMean(FAFED):
    """v_0 as the square of the mean gradient instead of the mean square."""

    def first_step(self, shared, mean, info):
        return super().first_step(shared, mean._replace(v=mean.m**2), info)


MUTANTS = [PreviousIsMean, PreviousIsCurrent, LateScale, ScaleMovesLocally, SquareOfTheMean]


def pseudo_code(cls):
    p = Problem(N)
    log = transcribed(p.x0, p.g, p.g0, N, Q, Q * R, lambda t: 0.05, lambda t: 0.1, 0.9, 0.01)
    found = p.xs(cls(eta=0.05, alpha=0.1, beta=0.9, rho=0.01), Q, R)
    close(found, torch.stack([log["next"][r * Q][0] for r in range(1, R + 1)]))


def exact_tracker(cls):
    """ID-4."""
    p = Problem(N, b="full", B="full")
    run = p.run(cls(eta=0.05, alpha=0.1), Q, R)
    for _ in run:
        last = [run.engine.states[i].local.x for i in range(N)]
        close(run.state.shared.m, sum(p.full(i, x) for i, x in enumerate(last)) / N)


def coupled(algorithm):
    """ID of the same-sample rule: with alpha = 0 and a vanishing step the estimate stays put,
    because both gradients of a step see the same masks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Dropout(0.5), nn.Linear(40, 3)).double()
    clients = [
        (torch.randn(20, 6, dtype=torch.float64), torch.randint(0, 3, (20,))) for _ in range(3)
    ]
    norms = [
        record.diagnostics["m_norm"]
        for record in fafed.train(
            model, clients, algorithm, rounds=3, local_steps=4, batch_size=5, engine="loop"
        ).history
    ]
    assert max(norms) - min(norms) < 1e-6


@dataclass(frozen=True)
class CorrectedBeforeTheMaximum(FedAMS):
    """Divides v by 1 - beta2^r, and takes the maximum of that."""

    def server(self, shared, mean, info):
        right = super().server(shared, mean, info)
        vhat = torch.maximum(shared.vhat, unbias(right.v, self.beta2, right.r))
        scale = vhat.clamp(min=self.tau**2).sqrt()
        x = shared.x + self.eta_g * unbias(right.m, self.beta1, right.r) / scale
        return right._replace(x=x, vhat=vhat)


@dataclass(frozen=True)
class CorrectedWithoutTheMaximum(FedAMS):
    """Divides by the corrected v, not by vhat."""

    def server(self, shared, mean, info):
        right = super().server(shared, mean, info)
        v = right.v.clamp(min=self.tau**2)
        m = unbias(right.m, self.beta1, right.r)
        return right._replace(x=shared.x + self.eta_g * m / unbias(v, self.beta2, right.r).sqrt())


def bias_correction(cls):
    p, common = Problem(N), {"eta": 0.05, "eta_g": 0.03, "beta1": 0.8, "beta2": 0.7, "tau": 0.01}
    setting = (0.03, "ams-max", 0.8, 0.7, 0.01)
    due = server_optimiser(p.x0, p.g, [1 / N] * N, Q, R, lambda t: 0.05, *setting, bias=True)
    close(p.xs(cls(**common, bias_correction=True), Q, R), torch.stack([x for x, _, _ in due]))


class SameAnchor(Examples):
    """Draws the first round's anchor in every round."""

    def draw_stacked(self, kinds, clients, step, steps):
        found = super().draw_stacked(kinds, clients, step, steps)
        return found._replace(anchor=super().draw_stacked(kinds, clients, 0, steps).anchor)


def fresh_anchors(cls):
    """The mean of an anchor's gradient over many rounds is the gradient on all data."""
    p = Problem(N)
    source = cls(p.pool, p.parts, batch_size=p.b, anchor_size=p.B)
    found = []
    for r in range(300):
        batches = ClientBatches(source.gather, source.draw(("anchor",), 1, r * Q, Q))
        found.append(p._gradient(p.x0, batches.anchor.data))
    close(torch.stack(found).mean(0), p.full(1, p.x0), atol=0.03)


class NoTwoSigma(StemStep):
    """Leaves out 2 sigma^2, the smallest w_t."""

    def __call__(self, t):
        own, floor = self.sigma**2 * (t.double() + 1), (16 * self.L * self.q * self.kappa) ** 3
        return self.kappa / own.clamp(min=floor) ** (1 / 3)


def stem_step(cls):
    sigma, L, t = 0.3, 0.7, 5000
    kappa = sigma ** (2 / 3) / L
    w = max(2 * sigma**2, (16 * L * kappa) ** 3 - sigma**2 * (t + 1))
    due = kappa / (w + sigma**2 * (t + 1)) ** (1 / 3)
    close(float(cls(L, 1, 1, 1, sigma)(torch.tensor(t))), due, atol=1e-12)


OTHERS = [
    (bias_correction, FedAMS, CorrectedBeforeTheMaximum),
    (bias_correction, FedAMS, CorrectedWithoutTheMaximum),
    (fresh_anchors, Examples, SameAnchor),
    (stem_step, StemStep, NoTwoSigma),
]


@pytest.mark.parametrize(("law", "right", "wrong"), OTHERS)
def test_other_mutants_fail_what_the_true_one_passes(law, right, wrong):
    law(right)
    with pytest.raises(AssertionError):
        law(wrong)


def test_the_true_one_passes():
    pseudo_code(FAFED)
    exact_tracker(FAFED)
    coupled(FAFED(eta=1e-9, alpha=0.0))


@pytest.mark.parametrize("cls", MUTANTS)
def test_mutants_fail_against_the_pseudo_code(cls):
    with pytest.raises(AssertionError):
        pseudo_code(cls)


@pytest.mark.parametrize("cls", [PreviousIsMean, PreviousIsCurrent])
def test_a_wrong_previous_iterate_fails_the_exact_tracker(cls):
    with pytest.raises(AssertionError):
        exact_tracker(cls)


def test_uncoupled_masks_fail_the_same_sample_rule():
    with pytest.raises(AssertionError):
        coupled(FAFED(eta=1e-9, alpha=0.0, coupled_masks=False))


# The methods with a mean direction, and those with moments of their own.


@dataclass(frozen=True)
class ForgetsTheServersStep(FedCM):
    """Derives D without eta_g."""

    def local(self, grad, down, local, batches):
        kept, message = super().local(grad, down, local, batches)
        return kept._replace(reach=kept.reach / self.eta_g), message


@dataclass(frozen=True)
class DirectionOfItsOwn(FedCM):
    """Each client follows the direction of its own last move."""

    def local(self, grad, down, local, batches):
        kept, message = super().local(grad, down, local, batches)
        return kept._replace(x=down.x, reach=-kept.reach * message.delta.norm()), message


@dataclass(frozen=True)
class RestartsTheCount(DiLoCo):
    """Corrects the bias of moments that are kept by the steps of this round alone."""

    def local(self, grad, down, local, batches):
        return super().local(grad, down, local._replace(n=torch.zeros_like(local.n)), batches)


@dataclass(frozen=True)
class SendsOnlyThoseWhoCame(FedDyn):
    """Forgets that h is a mean over all clients."""

    def server(self, shared, mean, info):
        return super().server(shared, mean, info._replace(share=1.0))


COHORTS = [[0, 1], [2, 3], [0, 3], [1], [2]]
UNIFORM = [1 / N] * N


def of_fedcm(cls):
    p = Problem(N)
    log = fedcm(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, 0.3, 0.6)
    close(p.xs(cls(0.05, 0.3, 0.6), Q, R), torch.stack([x for x, _ in log]))


def of_diloco(cls):
    p = Problem(N)
    log = diloco(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.02, 0.7, 0.9, (0.9, 0.999), 1e-8, 0.1)
    close(p.xs(cls(0.02), Q, R), torch.stack(log))


def of_feddyn(cls):
    p = Problem(N)
    log = feddyn(p.x0, p.g, UNIFORM, Q, R, lambda t: 0.05, 0.7, COHORTS)
    close(p.xs(cls(0.05, 0.7), Q, R, participation=COHORTS), torch.stack([x for x, _, _ in log]))


@pytest.mark.parametrize(
    ("law", "right", "wrong"),
    [
        (of_fedcm, FedCM, ForgetsTheServersStep),
        (of_fedcm, FedCM, DirectionOfItsOwn),
        (of_diloco, DiLoCo, RestartsTheCount),
        (of_feddyn, FedDyn, SendsOnlyThoseWhoCame),
    ],
)
def test_wrong_versions_of_newer_methods_fail(law, right, wrong):
    law(right)
    with pytest.raises(AssertionError):
        law(wrong)
