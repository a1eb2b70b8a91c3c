"""Naive adaptive FedAvg: Algorithm 1 of the FAFED paper (https://arxiv.org/abs/2212.00974).

    v_i <- beta v_i + (1 - beta) g^2;   x_i <- x_i - eta g / (sqrt(v_i) + rho),   0/0 := 0
    every q steps x_i becomes the mean; v_i stays private

It can move away from the optimum (Theorem 1), because every client divides by its own root.
Departure from the paper: its line 8 divides each client's step by the receiver's v. The proof and
this code divide by the sender's. `local="adam"` adds the momentum that the paper's text mentions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, at_least, between, hyper, one_of
from fafed.core.schedules import Rate, at


class Shared(NamedTuple):
    x: Tensor
    t: Tensor  # steps made


class Local(NamedTuple):
    v: Tensor  # second moment
    m: Tensor  # local="adam": first moment; else empty


class Message(NamedTuple):
    x: Tensor


@dataclass(frozen=True)
class NaiveAdaptiveFedAvg(Algorithm[Shared, Shared, Local, Message]):
    """Adaptive local steps, each client with a scale of its own.

    Use it when you want to see why the scale must be shared. It is the FAFED paper's
    counterexample.
    Beware: it can move away from the optimum. With rho = 0 the length of a client's step hardly
    depends on its loss's slope, so many flat losses outweigh one steep loss.
    """

    eta: Rate = hyper(0.01, above(0, schedule=True), "the local step size")
    beta: float = hyper(0.9, between(0, 1), "the memory of the second moment v")
    rho: float = hyper(0.0, at_least(0), "added to sqrt(v); 0 in the paper")
    local_rule: str = hyper("sgd", one_of("sgd", "adam"), "adam: step along a running mean of g")
    beta1: float = hyper(0.9, between(0, 1), "adam: the memory of that running mean")

    def init(self, x: Tensor) -> Shared:
        return Shared(x, counter(x))

    def join(self, x: Tensor) -> Local:
        zero = torch.zeros_like(x)
        return Local(zero, zero if self.local_rule == "adam" else x[:0])

    def local(
        self, grad: Grad, down: Shared, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        (x, t), (v, m) = down, local
        for k, batch in enumerate(batches, start=1):
            g = grad(x, batch)
            v = self.beta * v + (1 - self.beta) * g**2
            if self.local_rule == "adam":
                m = g = self.beta1 * m + (1 - self.beta1) * g
            root = v.sqrt() + self.rho
            x = x - at(self.eta, t + k) * torch.where(root > 0, g / root, 0.0)
        return Local(v, m), Message(x)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        return Shared(mean.x, shared.t + info.steps)
