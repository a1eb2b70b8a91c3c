"""FedAdamW (Liu et al. 2025, https://arxiv.org/abs/2510.27486).

    m <- 0;  v <- vbar;  y <- x
    repeat q times, the k-th is step t:
        m <- beta1 m + (1 - beta1) g_i(y);   mhat = m / (1 - beta1^k)
        v <- beta2 v + (1 - beta2) g_i(y)^2;   vhat = v / (1 - beta2^t)
        y <- y - eta (mhat / (sqrt(vhat) + eps) + alpha D + decay y)
    D <- -mean_i(y - x) / (eta q);   x <- mean_i y;   vbar <- mean_i v

All clients begin a round with the same v, and D, the mean direction of the last round, aligns their
steps. `v_wire="block"` (the default) sends one number for each parameter tensor, the mean of v over
it. `v_wire="full"` sends all of v.

D is (x_old - x) / (eta q), so a client can compute it from two consecutive models. `wire="compact"`
(the default) uses this: it sends one vector less down, and the client keeps one.

Departures from the paper: its blocks are parts of a tensor that follow the Hessian of a transformer
(heads, output neurons). Here a block is a parameter tensor, so any model will do. The paper prints
the decay with the other sign, which would make weights grow. If eta changes within a round, eta q
is the sum of the round's steps.

The update agrees with a summary of the paper by others; the paper's full text was not at hand. In
the authors' code m and v have one step count, and clients send all of v (`v_wire="full"`). Here
both follow the summary. Not confirmed: which blocks the paper's own experiments had for each model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fafed.algorithms._adamw import AdamW, Moments, decoupled_decay, floor, memory
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
from fafed.core.hyper import above, at_least, hyper
from fafed.core.schedules import Rate, along
from fafed.core.vectors import step


@dataclass(frozen=True)
class FedAdamW(SharedSecondMoment):
    """Local AdamW that begins with a shared second moment and follows the last mean direction.

    Use it when the model wants AdamW (transformers) and clients differ: about FedAvg's bytes.
    Beware: v moves locally within a round, so some drift remains. The default wire needs all
    clients in every round; wire="full" does not, and sends one vector more down.
    """

    eta: Rate = hyper(0.003, above(0, schedule=True), "the local step size")
    alpha: float = hyper(0.5, at_least(0), "the weight of the last mean direction in a local step")
    beta1: float = memory(0.9, "m")
    beta2: float = memory(0.999, "v")
    eps: float = floor()
    decay: float = decoupled_decay(0.01)
    v_wire: str = v_wire("block")
    wire: str = wire("compact derives D instead of sending it; it needs all clients")
    blocks: tuple[int, ...] = v_blocks()

    def init(self, x: Tensor) -> Shared:
        v = torch.zeros_like(x)
        return Shared(x, self.sent(v), x[:0] if self.compact else torch.zeros_like(x), counter(x))

    def local(
        self, grad: Grad, down: Shared, local: Seen, batches: Batches
    ) -> tuple[Seen, Message]:
        x, v, d, t = down
        rates = along(self.eta, t, len(batches))
        if self.compact:
            d = derived_direction(x, local)
        adamw = AdamW(self.beta1, self.beta2, self.eps, self.decay)
        y, moments = x, Moments(torch.zeros_like(x), self.received(v, x))
        for k, (rate, batch) in enumerate(zip(rates, batches, strict=True), start=1):
            moments = adamw.moments(moments, grad(y, batch))
            y = step(y, rate, adamw.direction(y, moments, k, t + k) + self.alpha * d)
        now = seen(x, sum(rates), compact=self.compact)
        return now, Message(y - x, self.sent(moments.v))

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        d = self.direction(shared, mean.delta, info.steps)
        return Shared(shared.x + mean.delta, mean.v, d, shared.t + info.steps)
