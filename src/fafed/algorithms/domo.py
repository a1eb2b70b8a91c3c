"""DOMO (Xu and Huang, AAAI 2022, https://arxiv.org/abs/2102.03970): momentum on both sides.

    fusion="pre"     y <- x - eta beta q m;   q times:  u <- mu_l u + g_i(y);  y <- y - eta u
    fusion="intra"   y <- x;   q times:  u <- mu_l u + g_i(y);  y <- y - eta (u + beta m)
    u starts every round at 0;   D_i = (1/q) sum of the u's of the round
    m <- mu_s m + mean_i D_i;   x <- x - eta_g eta q m

D_i leaves out the fused part, otherwise the server would count its momentum twice. Neither momentum
is damped: the effective step is eta / ((1 - mu_l) (1 - mu_s)). eta must be a constant, because D_i
gives all u's of the round the same weight.

m is (x_old - x) / (eta_g eta q), so a client can compute it from two consecutive models.
`wire="compact"` (the default) uses this: it sends one vector down instead of two, and the client
keeps one. It needs every client in every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.algorithms._wire import CompactWire, wire
from fafed.core.algorithm import RoundInfo
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, between, hyper, one_of, optional


class Shared(NamedTuple):
    x: Tensor
    m: Tensor  # the server's momentum


class Local(NamedTuple):
    x: Tensor  # compact: the model of the last round; else empty


class Message(NamedTuple):
    d: Tensor


@dataclass(frozen=True)
class DOMO(CompactWire[Shared, Shared, Local, Message]):
    """Momentum on the server and on the clients. Local steps already include the server's momentum.

    Use it when FedAvg is too slow, but its cost in bytes and gradients is the limit.
    Beware: neither momentum is damped, so the effective step is eta / ((1 - mu_l) (1 - mu_s)).
    Start at a tenth to a hundredth of FedAvg's eta. The default wire needs all clients;
    wire="full" does not.
    """

    eta: float = hyper(0.003, above(0), "the local step size")
    eta_g: float = hyper(1.0, above(0), "the server's step size")
    mu_s: float = hyper(0.9, between(0, 1), "the memory of the server's momentum")
    mu_l: float = hyper(0.9, between(0, 1), "the memory of the local momentum")
    beta: float | None = hyper(
        None, optional(between(0, 1)), "how much of m the clients anticipate; mu_s if None"
    )
    fusion: str = hyper(
        "pre", one_of("pre", "intra"), "clients move along m before their steps, or in each"
    )
    wire: str = wire("compact derives m instead of sending it")

    def init(self, x: Tensor) -> Shared:
        return Shared(x, torch.zeros_like(x))

    def join(self, x: Tensor) -> Local:
        return Local(x if self.compact else x[:0])

    def send(self, shared: Shared) -> Shared:
        return shared._replace(m=shared.m[:0]) if self.compact else shared

    def local(
        self, grad: Grad, down: Shared, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        (x, m), q = down, len(batches)
        if self.compact:
            m = (local.x - x) / (self.eta_g * self.eta * q)
        fused = self.eta * (self.mu_s if self.beta is None else self.beta) * m
        y = x - q * fused if self.fusion == "pre" else x
        u = total = torch.zeros_like(x)
        for batch in batches:
            u = self.mu_l * u + grad(y, batch)
            y = y - self.eta * u
            if self.fusion == "intra":
                y = y - fused
            total = total + u
        return Local(x if self.compact else x[:0]), Message(total / q)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        m = self.mu_s * shared.m + mean.d
        return Shared(shared.x - self.eta_g * self.eta * info.steps * m, m)
