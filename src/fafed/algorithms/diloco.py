"""DiLoCo (Douillard et al. 2023, https://arxiv.org/abs/2311.08105).

    y <- x;  q times:  m <- beta1 m + (1 - beta1) g_i(y);   v <- beta2 v + (1 - beta2) g_i(y)^2
                       y <- y - eta (mhat / (sqrt(vhat) + eps) + decay y)
    G <- -mean_i(y - x);   u <- mu u + G;   x <- x - eta_g (G + mu u)

mhat and vhat are m and v divided by 1 - beta^n, where n counts the client's own steps. m, v and n
stay with the client for good and never travel. The server makes a step of Nesterov's momentum.

With `inner="sgd"` the local steps are those of FedAvg. Made for few clients with much data of the
same kind and hundreds of local steps. Each client divides by its own v, so with clients that differ
the mean of their models is not where it should be, as in naive adaptive FedAvg. The paper's eta is
4e-4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.algorithms._adamw import AdamW, Moments, decoupled_decay, floor, memory
from fafed.core.algorithm import Algorithm, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, between, hyper, one_of
from fafed.core.schedules import Rate, along
from fafed.core.vectors import step


class Shared(NamedTuple):
    x: Tensor
    u: Tensor  # the server's momentum
    t: Tensor  # steps made


class Down(NamedTuple):
    x: Tensor
    t: Tensor


class Local(NamedTuple):
    m: Tensor  # sgd: empty
    v: Tensor  # sgd: empty
    n: Tensor  # steps that this client has made


class Message(NamedTuple):
    delta: Tensor


@dataclass(frozen=True)
class DiLoCo(Algorithm[Shared, Down, Local, Message]):
    """Many local steps of AdamW, and Nesterov's momentum on the server.

    Use it when few clients have much data of the same kind, rounds are expensive, and the model
    wants AdamW: transformers.
    Beware: if clients differ, their private scales move the mean away from the optimum. Each client
    keeps two vectors.
    """

    eta: Rate = hyper(0.001, above(0, schedule=True), "the local step size")
    eta_g: float = hyper(0.7, above(0), "the server's step size")
    mu: float = hyper(0.9, between(0, 1), "the memory of the server's momentum")
    beta1: float = memory(0.9, "m")
    beta2: float = memory(0.999, "v")
    eps: float = floor()
    decay: float = decoupled_decay(0.1)
    inner: str = hyper("adamw", one_of("adamw", "sgd"), "the local steps")

    def init(self, x: Tensor) -> Shared:
        return Shared(x, torch.zeros_like(x), counter(x))

    def join(self, x: Tensor) -> Local:
        zero = torch.zeros_like(x) if self.inner == "adamw" else x[:0]
        return Local(zero, zero, counter(x))

    def send(self, shared: Shared) -> Down:
        return Down(shared.x, shared.t)

    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        x, t = down
        m, v, n = local
        rates = along(self.eta, t, len(batches))
        if self.inner == "sgd":
            y = grad.sgd_steps(x, rates, batches)
            return Local(m, v, n + len(batches)), Message(y - x)
        adamw = AdamW(self.beta1, self.beta2, self.eps, self.decay)
        y, moments = x, Moments(m, v)
        for rate, batch in zip(rates, batches, strict=True):
            n = n + 1
            moments = adamw.moments(moments, grad(y, batch))
            y = step(y, rate, adamw.direction(y, moments, n, n))
        return Local(*moments, n), Message(y - x)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        u = self.mu * shared.u - mean.delta
        x = shared.x - self.eta_g * (self.mu * u - mean.delta)
        return Shared(x, u, shared.t + info.steps)
