"""FedAvg (McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629), or local SGD.

    x_i <- x;  repeat q times:  x_i <- x_i - eta g_i(x_i)
    x   <- x + eta_g mean_i(x_i - x)

With `server_momentum` = mu the server adds mu times its last move. This is FedAvgM (Hsu, Qi and
Brown 2019, https://arxiv.org/abs/1909.06335).

Departures from the paper: the paper weights clients by their numbers of examples, which here is
`weights="examples"`; the default is equal weights. All clients take the same number of local steps,
so that those with more data do not take more; `local_epochs` sets it from epochs of a mean client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.algorithms._momentum import add_server_momentum, server_momentum
from fafed.core.algorithm import Algorithm, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, hyper
from fafed.core.schedules import Rate, along


class Shared(NamedTuple):
    x: Tensor
    t: Tensor  # steps made
    last: Tensor  # server_momentum: the server's last move; else empty


class Down(NamedTuple):
    x: Tensor
    t: Tensor


class Message(NamedTuple):
    delta: Tensor


@dataclass(frozen=True)
class FedAvg(Algorithm[Shared, Down, tuple[()], Message]):
    """Local SGD, and the mean of the resulting models.

    Use it when you begin: one vector each way, one gradient per step, nothing to keep, one step
    size to choose.
    Beware: if clients differ it converges to a point beside the optimum. Larger q and eta increase
    the distance.
    """

    eta: Rate = hyper(0.1, above(0, schedule=True), "the local step size")
    eta_g: float = hyper(1.0, above(0), "the server's step size")
    server_momentum: float = server_momentum("above 0 this is FedAvgM")

    def init(self, x: Tensor) -> Shared:
        last = torch.zeros_like(x) if self.server_momentum else x.new_empty(0)
        return Shared(x, counter(x), last)

    def send(self, shared: Shared) -> Down:
        return Down(shared.x, shared.t)

    def local(
        self, grad: Grad, down: Down, local: tuple[()], batches: Batches
    ) -> tuple[tuple[()], Message]:
        x, t = down
        x = grad.sgd_steps(x, along(self.eta, t, len(batches)), batches)
        return local, Message(x - down.x)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        x = shared.x + self.eta_g * mean.delta
        x, last = add_server_momentum(x, shared.x, shared.last, self.server_momentum)
        return Shared(x, shared.t + info.steps, last)
