"""FedAvg (McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629), or local SGD.

    x_i <- x;  repeat q times:  x_i <- x_i - eta g_i(x_i)
    x   <- x + eta_g mean_i(x_i - x)

Departure from the paper: a fixed number of local steps rather than epochs, so that clients with
more data do not take more steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fafed.algorithm import Algorithm, Batches, Grad, Trip, above, counter, hyper
from fafed.schedules import Rate, along
from fafed.walks import descend


class Shared(NamedTuple):
    x: Tensor
    t: Tensor  # steps made


class Message(NamedTuple):
    delta: Tensor


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Local SGD, and the mean of what comes out of it.

    Use it when you begin: one vector each way, one gradient per step, nothing to keep, one step
    size to choose.
    Beware: where clients differ it ends beside the optimum, the farther the larger q and eta are.
    """

    eta: Rate = hyper(0.01, above(0, schedule=True), "the local step size")
    eta_g: float = hyper(1.0, above(0), "the server's step size")

    def init(self, x: Tensor) -> Shared:
        return Shared(x, counter(x))

    def local(
        self, grad: Grad, down: Shared, local: tuple[()], batches: Batches
    ) -> tuple[tuple[()], Message]:
        x, t = down
        x = descend(grad, x, along(self.eta, t, len(batches)), batches)
        return local, Message(x - down.x)

    def server(self, shared: Shared, mean: Message, trip: Trip) -> Shared:
        return Shared(shared.x + self.eta_g * mean.delta, shared.t + trip.steps)
