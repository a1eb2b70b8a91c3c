"""FedLADA (Sun et al., TPAMI 2023, https://arxiv.org/abs/2308.00522).

    m <- 0;  v <- vbar;  vhat <- vbar;  y <- x
    repeat q times:
        m <- beta1 m + (1 - beta1) g_i(y);   v <- beta2 v + (1 - beta2) g_i(y)^2
        vhat <- max(vhat, v);   y <- y - eta (alpha m / sqrt(vhat) + (1 - alpha) D)
    D <- -mean_i(y - x) / (eta q);   x <- x + eta_g mean_i(y - x);   vbar <- mean_i vhat

Local AMSGrad, amended by D, the mean direction of the last round. vbar starts at eps^2 and never
becomes smaller. `v_wire="full"` (the default) sends all of vhat, as in the paper. With "block" one
number travels for each parameter tensor, the mean of vhat over it.

D is (x_old - x) / (eta_g eta q), so a client can compute it from two consecutive models.
`wire="compact"` (the default) uses this: it sends one vector less down, and the client keeps one.

Departure from the paper: if eta changes within a round, eta q is the sum of the round's steps.

The paper's full text was not at hand, and its authors' public simulator does not have FedLADA. Two
implementations that others published, fedbrew and the baseline of FedAdamW's authors, agree on the
server's step (the mean move; eta_g = 1), on D, on alpha = 0.1, and on how a round starts: m = 0,
and v is the clients' mean second moment. The rest is fedbrew's. The other one takes no maximum,
averages v, and has beta2 = 0.999. So two things are not confirmed: that vhat, not v, is averaged,
and beta2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fafed.algorithms._adamw import floor, memory
from fafed.algorithms._second_moment import (
    Message,
    Shared,
    SharedSecondMoment,
    v_blocks,
    v_wire,
)
from fafed.algorithms._wire import Seen, derived_direction, seen, wire
from fafed.core.algorithm import RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, between, hyper
from fafed.core.schedules import Rate, along
from fafed.core.vectors import step


@dataclass(frozen=True)
class FedLADA(SharedSecondMoment):
    """Local AMSGrad steps, mixed with the mean direction of the last round.

    Use it when the local steps should adapt and clients differ.
    Beware: two vectors each way, about one with v_wire="block". The second moment never becomes
    smaller. The default wire needs all clients in every round; wire="full" does not.
    """

    eta: Rate = hyper(0.01, above(0, schedule=True), "the local step size")
    alpha: float = hyper(0.1, between(0, 1), "the share of a client's own adaptive direction")
    eta_g: float = hyper(1.0, above(0), "the server's step size")
    beta1: float = memory(0.9, "m")
    beta2: float = memory(0.99, "v")
    eps: float = floor()
    v_wire: str = v_wire("full")
    wire: str = wire("compact derives D instead of sending it; it needs all clients")
    blocks: tuple[int, ...] = v_blocks()

    def init(self, x: Tensor) -> Shared:
        v = self.sent(torch.full_like(x, self.eps**2))
        return Shared(x, v, x[:0] if self.compact else torch.zeros_like(x), counter(x))

    def local(
        self, grad: Grad, down: Shared, local: Seen, batches: Batches
    ) -> tuple[Seen, Message]:
        x, v, d, t = down
        rates = along(self.eta, t, len(batches))
        if self.compact:
            d = derived_direction(x, local)
        v = self.received(v, x)
        y, m, vhat = x, torch.zeros_like(x), v
        for rate, batch in zip(rates, batches, strict=True):
            g = grad(y, batch)
            m = self.beta1 * m + (1 - self.beta1) * g
            v = self.beta2 * v + (1 - self.beta2) * g**2
            vhat = torch.maximum(vhat, v)
            y = step(y, rate, self.alpha * m / vhat.sqrt() + (1 - self.alpha) * d)
        now = seen(x, self.eta_g * sum(rates), compact=self.compact)
        return now, Message(y - x, self.sent(vhat))

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        d = self.direction(shared, mean.delta, info.steps)
        return Shared(shared.x + self.eta_g * mean.delta, mean.v, d, shared.t + info.steps)
