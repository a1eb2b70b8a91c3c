"""Local AMSGrad with a shared second moment (Chen et al., FODS 2020,
https://arxiv.org/abs/2109.05109).

    m_i <- beta1 m_i + (1 - beta1) g;   v_i <- beta2 v_i + (1 - beta2) g^2
    x_i <- x_i - eta m_i / sqrt(vhat)
    every q-th step:  vhat <- max(vhat, mean_i v_i), and x is the mean over the clients of this
                      step taken with the new vhat

m_i and v_i stay with their client. All clients have the same vhat. So the server can make the q-th
step from the means of x_i and m_i, and one exchange is enough. `timing="stale"` makes it with the
old vhat instead and sends one vector less. `v_sync="average"` replaces every v_i by the mean.

Departures from the paper: vhat starts at max(eps0, mean_i g^2) for gradients at x_0, unless
`warm_share=False`. Starting at eps0 alone makes the first q - 1 steps huge. The paper's variant
with the maximum over clients in place of the mean of the v_i is left out: a server that sees only
sums cannot compute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm, Exchange, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, between, hyper, one_of, switch
from fafed.core.schedules import Rate, at


class Shared(NamedTuple):
    x: Tensor
    vhat: Tensor  # largest mean of the v_i so far
    v: Tensor  # v_sync="average": that mean; else empty
    t: Tensor  # steps made


class Opening(NamedTuple):
    x: Tensor


class Estimate(NamedTuple):
    v: Tensor


class Local(NamedTuple):
    m: Tensor
    v: Tensor  # v_sync="average": empty


class Message(NamedTuple):
    x: Tensor
    m: Tensor  # stale: empty
    v: Tensor


@dataclass(frozen=True)
class LocalAMSGrad(Algorithm[Shared, Shared, Local, Message]):
    """Local AMSGrad steps, divided on all clients by one shared second moment.

    Use it when the local steps themselves should adapt at one gradient each.
    Beware: three vectors up, two down, and two kept by each client. The shared moment never becomes
    smaller, and the drift of local steps remains.
    """

    eta: Rate = hyper(0.01, above(0, schedule=True), "the step size")
    beta1: float = hyper(0.9, between(0, 1), "the memory of m")
    beta2: float = hyper(0.99, between(0, 1), "the memory of v")
    eps0: float = hyper(1e-8, above(0), "where vhat starts: it keeps sqrt(vhat) away from zero")
    timing: str = hyper(
        "fresh", one_of("fresh", "stale"), "the q-th step uses the new vhat (paper) or the old one"
    )
    v_sync: str = hyper("local", one_of("local", "average"), "what becomes of v in an exchange")
    warm_share: bool = hyper(True, switch, "let vhat start from gradients at x_0")

    def init(self, x: Tensor) -> Shared:
        v = torch.zeros_like(x) if self.v_sync == "average" else x[:0]
        return Shared(x, torch.full_like(x, self.eps0), v, counter(x))

    def join(self, x: Tensor) -> Local:
        zero = torch.zeros_like(x)
        return Local(zero, zero if self.v_sync == "local" else x[:0])

    @property
    def squares(self) -> tuple[str, ...]:
        return ("v",)

    def opening(self) -> tuple[Exchange, ...]:
        if not self.warm_share:
            return ()
        return (Exchange(self.estimate, self.share, lambda s: Opening(s.x), ("anchor",)),)

    def estimate(
        self, grad: Grad, down: Opening, local: Local, batches: Batches
    ) -> tuple[Local, Estimate]:
        return local, Estimate(grad(down.x, batches.anchor) ** 2)

    def share(self, shared: Shared, mean: Estimate, info: RoundInfo) -> Shared:
        return shared._replace(vhat=torch.maximum(shared.vhat, mean.v))

    def local(
        self, grad: Grad, down: Shared, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        x, vhat, v, t = down
        before, m = x, local.m
        if self.v_sync == "local":
            v = local.v
        for k, batch in enumerate(batches, start=1):
            g = grad(x, batch)
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * g**2
            before, x = x, x - at(self.eta, t + k) * m / vhat.sqrt()
        kept = Local(m, v if self.v_sync == "local" else v[:0])
        if self.timing == "stale":
            return kept, Message(x, m[:0], v)
        return kept, Message(before, m, v)  # the server makes the q-th step

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        x, m, v = mean
        t = shared.t + info.steps
        vhat = torch.maximum(shared.vhat, v)
        if self.timing == "fresh":
            x = x - at(self.eta, t) * m / vhat.sqrt()
        return Shared(x, vhat, v if self.v_sync == "average" else shared.v, t)
