"""FedCM (Xu et al. 2021, https://arxiv.org/abs/2106.10874), or FedAvg-M (Cheng et al., ICLR 2024,
https://arxiv.org/abs/2306.16504).

    y <- x;  repeat q times:  y <- y - eta (alpha g_i(y) + (1 - alpha) D)
    D <- -mean_i(y - x) / (eta q);   x <- x + eta_g mean_i(y - x)

D, the mean direction of the last round, is the same on all clients. It is 0 in the first round,
whose local steps are therefore alpha times shorter. It is an average over about 1 / alpha rounds.
So it replaces most of what a client's own gradient would add, and with it the drift. Cheng et al.
prove that the method converges however much clients differ, with clients absent, too.

D is (x_old - x) / (eta_g eta q), so a client can compute it from two consecutive models.
`wire="compact"` (the default) uses this: it sends one vector down instead of two, and the client
keeps one. It needs every client in every round.

Departure from the papers: if eta changes within a round, eta q is the sum of the round's steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.algorithms._wire import CompactWire, Seen, derived_direction, mean_direction, seen, wire
from fafed.core.algorithm import RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, hyper, share
from fafed.core.schedules import Rate, along


class Shared(NamedTuple):
    x: Tensor
    d: Tensor  # mean direction of the last round; compact: empty
    t: Tensor  # steps made


class Message(NamedTuple):
    delta: Tensor


@dataclass(frozen=True)
class FedCM(CompactWire[Shared, Shared, Seen, Message]):
    """FedAvg whose local steps go mostly in the mean direction of the last round.

    Use it when clients differ, or few of many take part (wire="full"): little drift, at FedAvg's
    cost in bytes and gradients.
    Beware: a small alpha reacts slowly. The default wire needs all clients in every round;
    wire="full" does not, and sends two vectors down.
    """

    eta: Rate = hyper(1.0, above(0, schedule=True), "the local step size")
    alpha: float = hyper(0.1, share, "the share of a client's own gradient; 1 is FedAvg")
    eta_g: float = hyper(1.0, above(0), "the server's step size")
    wire: str = wire("compact derives D instead of sending it; it needs all clients")

    def init(self, x: Tensor) -> Shared:
        return Shared(x, x[:0] if self.compact else torch.zeros_like(x), counter(x))

    def join(self, x: Tensor) -> Seen:
        return seen(x, 1.0, compact=self.compact)

    def local(
        self, grad: Grad, down: Shared, local: Seen, batches: Batches
    ) -> tuple[Seen, Message]:
        x, d, t = down
        rates = along(self.eta, t, len(batches))
        if self.compact:
            d = derived_direction(x, local)
        # alpha g + (1 - alpha) D as a multiple of g + correction
        correction = None if self.alpha == 1 else (1 / self.alpha - 1) * d
        y = grad.sgd_steps(x, [self.alpha * rate for rate in rates], batches, correction)
        return seen(x, self.eta_g * sum(rates), compact=self.compact), Message(y - x)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        rates = along(self.eta, shared.t, info.steps)
        d = shared.d if self.compact else mean_direction(mean.delta, rates)
        return Shared(shared.x + self.eta_g * mean.delta, d, shared.t + info.steps)
