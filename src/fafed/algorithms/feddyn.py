"""FedDyn (Acar et al., ICLR 2021, https://arxiv.org/abs/2111.04263).

    y <- x;  repeat q times:  y <- y - eta (g_i(y) - l_i + mu (y - x));   l_i <- l_i - mu (y - x)
    h <- h - mu (|S|/N) mean_S(y - x);   x <- mean_S(y) - h / mu

mu is the paper's alpha, l_i its gradient of the client's loss at the client's last solution: each
local problem is f_i(y) - <l_i, y> + (mu/2) |y - x|^2. eta (L + mu) < 2 is needed. h is the mean of
the l_i. At a fixed point each l_i is the gradient of f_i, and their mean is zero: no drift.

FedDyn is FedPD (-l_i is its dual) whose local steps begin at x instead of the client's own last
solution. So it costs a vector less, and clients may be absent. In the first round, and with exact
local solutions and all clients in every round, the two are the same.

Departure from the paper: q gradient steps instead of a solution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, hyper
from fafed.core.schedules import Rate, at
from fafed.core.vectors import step


class Shared(NamedTuple):
    x: Tensor
    h: Tensor  # mean of the l_i of all clients
    t: Tensor  # steps made


class Down(NamedTuple):
    x: Tensor
    t: Tensor


class Local(NamedTuple):
    g: Tensor  # l_i: what the client knows of its gradient


class Message(NamedTuple):
    delta: Tensor


@dataclass(frozen=True)
class FedDyn(Algorithm[Shared, Down, Local, Message]):
    """FedProx with a linear term per client that makes all local problems agree at the optimum.

    Use it when data differ and clients may be absent: no bias of local steps, at FedAvg's cost in
    bytes and gradients.
    Beware: eta (L + mu) < 2 is needed. With a small mu the server's step h / mu is large, and it
    may diverge. Each client keeps one vector.
    """

    eta: Rate = hyper(0.1, above(0, schedule=True), "the local step size")
    mu: float = hyper(0.1, above(0), "how strongly a client is held back, alpha of the paper")

    def init(self, x: Tensor) -> Shared:
        return Shared(x, torch.zeros_like(x), counter(x))

    def join(self, x: Tensor) -> Local:
        return Local(torch.zeros_like(x))

    def send(self, shared: Shared) -> Down:
        return Down(shared.x, shared.t)

    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        x, t = down
        y = x
        for k, batch in enumerate(batches, start=1):
            y = step(y, at(self.eta, t + k), grad(y, batch) - local.g + self.mu * (y - x))
        return Local(local.g - self.mu * (y - x)), Message(y - x)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        h = shared.h - self.mu * info.share * mean.delta
        return Shared(shared.x + mean.delta - h / self.mu, h, shared.t + info.steps)
