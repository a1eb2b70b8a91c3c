"""FedProx (Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127).

    y <- x;  repeat q times:  y <- y - eta (g_i(y) + mu (y - x))
    x <- x + mean_i(y - x)

The first local step is that of FedAvg for every mu, so with q = 1 there is no difference.
Departures from the paper: every client makes q gradient steps on f_i(y) + (mu/2) |y - x|^2, rather
than solving it as well as it can. The mean over the clients that take part is weighted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fafed.core.algorithm import Algorithm, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, at_least, hyper
from fafed.core.schedules import Rate, at
from fafed.core.vectors import step


class Shared(NamedTuple):
    x: Tensor
    t: Tensor  # steps made


class Message(NamedTuple):
    delta: Tensor


@dataclass(frozen=True)
class FedProx(Algorithm[Shared, Shared, tuple[()], Message]):
    """FedAvg whose local steps are pulled back to the server's model.

    Use it when q is large and the local models move too far away from the server's.
    Beware: with q = 1 it is FedAvg for every mu. It reduces the bias of local steps but does not
    remove it. With a larger mu each round makes less progress.
    """

    eta: Rate = hyper(0.1, above(0, schedule=True), "the local step size")
    mu: float = hyper(0.01, at_least(0), "how strongly a client is held back; 0 is FedAvg")

    def init(self, x: Tensor) -> Shared:
        return Shared(x, counter(x))

    def local(
        self, grad: Grad, down: Shared, local: tuple[()], batches: Batches
    ) -> tuple[tuple[()], Message]:
        x, t = down
        y = x
        for k, batch in enumerate(batches, start=1):
            y = step(y, at(self.eta, t + k), grad(y, batch) + self.mu * (y - x))
        return local, Message(y - x)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        return Shared(shared.x + mean.delta, shared.t + info.steps)
