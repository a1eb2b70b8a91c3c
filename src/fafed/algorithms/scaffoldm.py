"""SCAFFOLD-M, here SCAFFOLDM (Cheng et al., ICLR 2024, https://arxiv.org/abs/2306.16504).

    y <- x;  repeat q times:  y <- y - eta (alpha (g_i(y) - c_i + c) + (1 - alpha) D)
    c_i <- mean of the client's q gradients of the round
    D <- -mean_S(y - x) / (eta q);   x <- x + eta_g mean_S(y - x)
    c <- c + (|S|/N) mean_S(change of c_i)

It is FedCM with the correction of SCAFFOLD, and SCAFFOLD with alpha = 1.

With all clients in every round, c is the mean of the c_i. So it is (D - (1 - alpha) D_old) / alpha,
and D follows from two consecutive models. `wire="compact"` (the default) uses this: it sends one
vector each way instead of two up and three down. The client keeps three instead of one.

Departure from the paper: if eta changes within a round, eta q is the sum of the round's steps, and
the mean of the gradients is weighted by the steps.
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
    c: Tensor  # mean of the c_i; compact: empty
    t: Tensor  # steps made


class Local(NamedTuple):
    c: Tensor  # this client's control variate
    d: Tensor  # compact: D of the last round; else empty
    seen: Seen


class Message(NamedTuple):
    delta: Tensor
    dc: Tensor  # compact: empty


@dataclass(frozen=True)
class SCAFFOLDM(CompactWire[Shared, Shared, Local, Message]):
    """SCAFFOLD whose local steps go mostly in the mean direction of the last round.

    Use it when clients differ much: no bias of local steps, and momentum, at FedAvg's cost in bytes
    and gradients.
    Beware: the default wire needs all clients in every round, and each client keeps three vectors.
    With wire="full" clients may be absent. Then each keeps one, sends two and gets three.
    """

    eta: Rate = hyper(0.3, above(0, schedule=True), "the local step size")
    alpha: float = hyper(0.1, share, "the share of a client's own gradient; 1 is SCAFFOLD")
    eta_g: float = hyper(1.0, above(0), "the server's step size")
    wire: str = wire("compact derives c and D instead of sending them; it needs all clients")

    def init(self, x: Tensor) -> Shared:
        zero = x[:0] if self.compact else torch.zeros_like(x)
        return Shared(x, zero, zero, counter(x))

    def join(self, x: Tensor) -> Local:
        zero = torch.zeros_like(x)
        return Local(zero, zero if self.compact else x[:0], seen(x, 1.0, compact=self.compact))

    def local(
        self, grad: Grad, down: Shared, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        x, d, c, t = down
        rates = along(self.eta, t, len(batches))
        if self.compact:
            d = derived_direction(x, local.seen)
            c = (d - (1 - self.alpha) * local.d) / self.alpha
        correction = c - local.c + (1 / self.alpha - 1) * d
        y = grad.sgd_steps(x, [self.alpha * rate for rate in rates], batches, correction)
        c_new = (x - y) / (self.alpha * sum(rates)) - correction
        now = seen(x, self.eta_g * sum(rates), compact=self.compact)
        kept = Local(c_new, d if self.compact else d[:0], now)
        return kept, Message(y - x, x[:0] if self.compact else c_new - local.c)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        x, d, c, t = shared
        if not self.compact:
            d = mean_direction(mean.delta, along(self.eta, t, info.steps))
            c = c + info.share * mean.dc
        return Shared(x + self.eta_g * mean.delta, d, c, t + info.steps)
