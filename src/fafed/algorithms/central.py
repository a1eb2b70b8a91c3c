"""Centralised references, for one client: Adam (Kingma and Ba, ICLR 2015,
https://arxiv.org/abs/1412.6980), AMSGrad (Reddi et al., ICLR 2018,
https://arxiv.org/abs/1904.09237), STORM (Cutkosky and Orabona, NeurIPS 2019,
https://arxiv.org/abs/1905.10018), SPIDER (Fang et al., NeurIPS 2018,
https://arxiv.org/abs/1807.01695) and SuperAdam (Huang et al., NeurIPS 2021,
https://arxiv.org/abs/2106.08208).

    Adam       m <- beta1 m + (1 - beta1) g;   v <- beta2 v + (1 - beta2) g^2
               x <- x - eta mhat / (sqrt(vhat) + tau)        hats: divided by 1 - beta^t
    AMSGrad    m, v the same;   vhat <- max(vhat, v);   x <- x - eta m / sqrt(vhat)
    STORM      d <- g(x_t) + (1 - a_t) (d - g(x_{t-1})),   d_1 = g(x_1);   x <- x - eta_t d
               eta_t = k / (w + sum_{s<=t} |g_s|^2)^(1/3);   a_{t+1} = min(1, c eta_t^2)
    SPIDER     v = gradient on much data in the first step of a round, then
               v <- v + g(x_t) - g(x_{t-1});   x <- x - eta v / |v|
    SuperAdam  m as STORM's d, with a_{t+1} = min(1, c mu_t^2);   v <- beta v + (1 - beta) g^2
               x <- x - eta mu_t m / (sqrt(v) + rho)         mu_t = k / (s + t)^(1/3)
               momentum="ema":  m <- a_t g + (1 - a_t) m, a_{t+1} = min(1, c mu_t), power 1/2

A round is q steps of the one client. q matters only for SPIDER, where it is the period. Departures
from the papers: AMSGrad's vhat starts at eps0 rather than 0. SuperAdam's v starts at the first g^2
unless `bias_correction`. A given eta (STORM) or alpha (STORM, SuperAdam) replaces the method's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fafed.algorithms.fedopt import unbias
from fafed.core.algorithm import Algorithm, Exchange, RoundInfo, counter
from fafed.core.batch import Batches, Draw
from fafed.core.gradient import Grad
from fafed.core.hyper import above, at_least, between, hyper, one_of, optional, switch
from fafed.core.schedules import Rate, at
from fafed.core.tree import Tree


class Shared(NamedTuple):
    x: Tensor
    t: Tensor  # steps made


class Message(NamedTuple):
    x: Tensor


Kept = TypeVar("Kept", bound=Tree)  # the optimiser's state


@dataclass(frozen=True)
class Central(Algorithm[Shared, Shared, Kept, Message]):
    """The common part: one client, which keeps the optimiser's state."""

    @property
    def population(self) -> int:
        return 1

    def init(self, x: Tensor) -> Shared:
        return Shared(x, counter(x))

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        return Shared(mean.x, shared.t + info.steps)


def after_the_first(n: Tensor) -> Tensor:
    """0 in step n = 1, which has no earlier step, then 1."""
    return (n > 1).double()


class Moments(NamedTuple):
    m: Tensor
    v: Tensor


@dataclass(frozen=True)
class Adam(Central[Moments]):
    """Adam on one client.

    Use it when all data are in one place, or as a reference: FedAdam with q = 1 is Adam on the mean
    gradient, without bias correction.
    Beware: it refuses to run with more than one client.
    """

    eta: Rate = hyper(0.001, above(0, schedule=True), "the step size")
    beta1: float = hyper(0.9, between(0, 1), "the memory of m")
    beta2: float = hyper(0.999, between(0, 1), "the memory of v")
    tau: float = hyper(1e-8, above(0), "the smallest denominator")
    v0: float = hyper(0.0, at_least(0), "where v starts")
    bias_correction: bool = hyper(True, switch, "divide m and v by 1 - beta^t")

    def join(self, x: Tensor) -> Moments:
        return Moments(torch.zeros_like(x), torch.full_like(x, self.v0))

    def local(
        self, grad: Grad, down: Shared, local: Moments, batches: Batches
    ) -> tuple[Moments, Message]:
        (x, t), (m, v) = down, local
        for n, batch in enumerate(batches, start=1):
            g = grad(x, batch)
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * g**2
            first, second = m, v
            if self.bias_correction:
                first, second = unbias(m, self.beta1, t + n), unbias(v, self.beta2, t + n)
            x = x - at(self.eta, t + n) * first / (second.sqrt() + self.tau)
        return Moments(m, v), Message(x)


class Maximum(NamedTuple):
    m: Tensor
    v: Tensor
    vhat: Tensor  # largest v so far


@dataclass(frozen=True)
class AMSGrad(Central[Maximum]):
    """AMSGrad on one client.

    Use it when all data are in one place, or as a reference: LocalAMSGrad with one client and q = 1
    is this method.
    Beware: no bias correction, and the first steps are long where the first gradients are small:
    vhat starts at eps0. It refuses to run with more than one client.
    """

    eta: Rate = hyper(0.001, above(0, schedule=True), "the step size")
    beta1: float = hyper(0.9, between(0, 1), "the memory of m")
    beta2: float = hyper(0.99, between(0, 1), "the memory of v")
    eps0: float = hyper(1e-8, above(0), "where vhat starts: it keeps sqrt(vhat) away from zero")

    def join(self, x: Tensor) -> Maximum:
        zero = torch.zeros_like(x)
        return Maximum(zero, zero, torch.full_like(x, self.eps0))

    def local(
        self, grad: Grad, down: Shared, local: Maximum, batches: Batches
    ) -> tuple[Maximum, Message]:
        (x, t), (m, v, vhat) = down, local
        for n, batch in enumerate(batches, start=1):
            g = grad(x, batch)
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * g**2
            vhat = torch.maximum(vhat, v)
            x = x - at(self.eta, t + n) * m / vhat.sqrt()
        return Maximum(m, v, vhat), Message(x)


class Recursion(NamedTuple):
    before: Tensor  # the last iterate
    d: Tensor  # estimate of the gradient
    total: Tensor  # sum of the squared norms of the gradients; a scalar


@dataclass(frozen=True)
class STORM(Central[Recursion]):
    """Recursive variance reduction on one client, without large batches.

    Use it when all data are in one place, or as a reference: STEM with one client and q = 1 is this
    method with given eta and alpha.
    Beware: two gradients per step. k, w and c are scale-dependent: tune them, or give eta and
    alpha. It refuses to run with more than one client.
    """

    k: float = hyper(0.1, above(0), "scale of the step size")
    w: float = hyper(0.1, above(0), "it bounds the first step sizes")
    c: float = hyper(10.0, above(0), "a_{t+1} = min(1, c eta_t^2)")
    eta: Rate | None = hyper(
        None, optional(above(0, schedule=True)), "the step size; None: from k, w and the gradients"
    )
    alpha: Rate | None = hyper(
        None, optional(between(0, 1, schedule=True)), "the share of new information; None: from c"
    )

    def join(self, x: Tensor) -> Recursion:
        return Recursion(x, torch.zeros_like(x), x.new_zeros(()))

    def local(
        self, grad: Grad, down: Shared, local: Recursion, batches: Batches
    ) -> tuple[Recursion, Message]:
        (x, t), (before, d, total) = down, local
        for n, batch in enumerate(batches, start=1):
            g = grad(x, batch)
            alpha = self.share(t + n, total)
            d = g + after_the_first(t + n) * (1 - alpha) * (d - grad(before, batch))
            total = total + g @ g
            before, x = x, x - self.rate(t + n, total) * d
        return Recursion(before, d, total), Message(x)

    def rate(self, n: Tensor, total: Tensor) -> float | Tensor:
        """eta_n, with the squares of steps 1 .. n in the total."""
        return self.k / (self.w + total) ** (1 / 3) if self.eta is None else at(self.eta, n)

    def share(self, n: Tensor, total: Tensor) -> float | Tensor:
        """a_n, with the squares of steps 1 .. n - 1 in the total."""
        if self.alpha is not None:
            return at(self.alpha, n)
        own = self.c * self.rate(n - 1, total) ** 2
        return own.clamp(max=1.0) if isinstance(own, Tensor) else min(1.0, own)


@dataclass(frozen=True)
class SPIDER(Central[tuple[()]]):
    """Recursive variance reduction on one client, restarted from much data every q steps.

    Use it when all data are in one place and a pass over them every q steps is affordable.
    Beware: two gradients per step and one pass per round. A normalised step does not become shorter
    near the optimum: let eta fall, or take step="constant". It refuses to run with more than one
    client.
    """

    eta: Rate = hyper(0.01, above(0, schedule=True), "the step size")
    step: str = hyper("normalised", one_of("normalised", "constant"), "divide v by its norm or not")
    anchor: str = hyper(
        "full", one_of("full", "batch"), "the data of the first gradient of a round"
    )

    def exchanges(self) -> tuple[Exchange, ...]:
        kind: Draw = "full" if self.anchor == "full" else "anchor"
        return (Exchange(self.local, self.server, self.send, ("round", kind)),)

    def local(
        self, grad: Grad, down: Shared, local: tuple[()], batches: Batches
    ) -> tuple[tuple[()], Message]:
        x, t = down
        before = v = x
        for n, batch in enumerate(batches, start=1):
            if n == 1:
                first = batches.full if self.anchor == "full" else batches.anchor
                v = grad(x, first.for_step())
            else:
                v = v + grad(x, batch) - grad(before, batch)
            move = v
            if self.step == "normalised":
                size = v.norm()
                move = torch.where(size > 0, v / size, 0.0)
            before, x = x, x - at(self.eta, t + n) * move
        return local, Message(x)


class Adaptive(NamedTuple):
    before: Tensor  # the last iterate; ema: empty
    m: Tensor  # estimate of the gradient
    v: Tensor  # second moment


@dataclass(frozen=True)
class SuperAdam(Central[Adaptive]):
    """Variance-reduced Adam on one client.

    Use it when all data are in one place, or as a reference: FAFED with one client and q = 1 is
    this method.
    Beware: two gradients per step unless momentum="ema". The step is eta mu_t, and with the
    defaults c mu_t^2 is above 1 for the first 150 steps: until then m is the plain gradient. It
    refuses to run with more than one client.
    """

    eta: float = hyper(0.001, above(0), "gamma of the paper: the step size is eta mu_t")
    k: float = hyper(1.0, above(0), "scale of mu_t")
    s: float = hyper(100.0, above(0), "mu_t = k / (s + t)^(1/3)")
    c: float = hyper(40.0, above(0), "a_{t+1} = min(1, c mu_t^2)")
    beta: float = hyper(0.999, between(0, 1), "the memory of the second moment v")
    rho: float = hyper(1e-3, above(0), "it keeps sqrt(v) + rho away from zero")
    momentum: str = hyper("storm", one_of("storm", "ema"), "tau = 1 or tau = 0 of the paper")
    alpha: Rate | None = hyper(
        None, optional(between(0, 1, schedule=True)), "the share of new information; None: from c"
    )
    bias_correction: bool = hyper(False, switch, "start v at 0 and divide it by 1 - beta^t")

    def join(self, x: Tensor) -> Adaptive:
        zero = torch.zeros_like(x)
        return Adaptive(x if self.momentum == "storm" else x[:0], zero, zero)

    def local(
        self, grad: Grad, down: Shared, local: Adaptive, batches: Batches
    ) -> tuple[Adaptive, Message]:
        (x, t), (before, m, v) = down, local
        for n, batch in enumerate(batches, start=1):
            g = grad(x, batch)
            keep = after_the_first(t + n) * (1 - self.share(t + n))
            if self.momentum == "storm":
                m = g + keep * (m - grad(before, batch))
                before = x
            else:
                m = (1 - keep) * g + keep * m
            if self.bias_correction:
                v = self.beta * v + (1 - self.beta) * g**2
                second = unbias(v, self.beta, t + n)
            else:
                v = second = torch.where(t + n > 1, self.beta * v + (1 - self.beta) * g**2, g**2)
            x = x - self.eta * self.mu(t + n) * m / (second.sqrt() + self.rho)
        return Adaptive(before, m, v), Message(x)

    def mu(self, n: Tensor) -> Tensor:
        return self.k / (self.s + n.double()) ** (1 / 3 if self.momentum == "storm" else 1 / 2)

    def share(self, n: Tensor) -> float | Tensor:
        if self.alpha is not None:
            return at(self.alpha, n)
        power = 2 if self.momentum == "storm" else 1
        return (self.c * self.mu(n - 1) ** power).clamp(max=1.0)
