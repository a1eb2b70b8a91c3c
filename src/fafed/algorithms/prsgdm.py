"""PR-SGD with momentum (Yu et al., ICML 2019, https://arxiv.org/abs/1905.03817).

    y <- x;  repeat q times:  u <- beta u + g_i(y);   y <- y - eta u                   polyak
                                                      y <- y - eta (beta u + g_i(y))   nesterov
    x <- mean_i y;   u <- mean_i u

The momentum is not damped by 1 - beta, so the effective step is eta / (1 - beta).
Variants that the paper does not have: `u_sync="reset"` starts every round at u = 0, and with
`u_sync="keep"` every client keeps its own u. Both send one vector instead of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, between, hyper, one_of
from fafed.core.schedules import Rate, at
from fafed.core.vectors import step


class Shared(NamedTuple):
    x: Tensor
    u: Tensor  # momentum; empty unless averaged
    t: Tensor  # steps made


class Local(NamedTuple):
    u: Tensor  # keep: this client's momentum; else empty


class Message(NamedTuple):
    x: Tensor
    u: Tensor


@dataclass(frozen=True)
class PRSGDM(Algorithm[Shared, Shared, Local, Message]):
    """Local SGD with a momentum that is averaged together with the model.

    Use it when FedAvg is too slow and a second vector each way is affordable. u_sync="reset" and
    "keep" do not send that vector.
    Beware: the momentum is not damped, so the effective step is eta / (1 - beta): start at a tenth
    of FedAvg's eta if beta = 0.9.
    """

    eta: Rate = hyper(0.01, above(0, schedule=True), "the local step size")
    beta: float = hyper(0.9, between(0, 1), "the memory of the momentum")
    momentum: str = hyper("polyak", one_of("polyak", "nesterov"), "the kind of momentum")
    u_sync: str = hyper(
        "average", one_of("average", "reset", "keep"), "what becomes of the momentum in an exchange"
    )

    def init(self, x: Tensor) -> Shared:
        return Shared(x, torch.zeros_like(x) if self.u_sync == "average" else x[:0], counter(x))

    def join(self, x: Tensor) -> Local:
        return Local(torch.zeros_like(x) if self.u_sync == "keep" else x[:0])

    def local(
        self, grad: Grad, down: Shared, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        x, u, t = down
        if self.u_sync == "keep":
            u = local.u
        elif self.u_sync == "reset":
            u = torch.zeros_like(x)
        for k, batch in enumerate(batches, start=1):
            g = grad(x, batch)
            u = self.beta * u + g
            move = u if self.momentum == "polyak" else self.beta * u + g
            x = step(x, at(self.eta, t + k), move)
        kept = u if self.u_sync == "keep" else u[:0]
        sent = u if self.u_sync == "average" else u[:0]
        return Local(kept), Message(x, sent)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        return Shared(mean.x, mean.u, shared.t + info.steps)
