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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fafed.algorithms._adamw import block_means, floor, memory, spread, v_blocks, v_wire
from fafed.algorithms._wire import CompactWire, Seen, derived_direction, mean_direction, seen, wire
from fafed.core.algorithm import RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, between, hyper
from fafed.core.schedules import Rate, along
from fafed.core.vectors import step


class Shared(NamedTuple):
    x: Tensor
    v: Tensor  # mean of the clients' vhat; block: one number for each tensor
    d: Tensor  # mean direction of the last round; compact: empty
    t: Tensor  # steps made


class Message(NamedTuple):
    delta: Tensor
    v: Tensor


@dataclass(frozen=True)
class FedLADA(CompactWire[Shared, Shared, Seen, Message]):
    """Local AMSGrad steps, mixed with the mean direction of the last round.

    Use it when the local steps should adapt and clients differ.
    Beware: two vectors each way, about one with v_wire="block". The second moment never becomes
    smaller. The default wire needs all clients in every round; wire="full" does not.
    """

    eta: Rate = hyper(0.001, above(0, schedule=True), "the local step size")
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

    def join(self, x: Tensor) -> Seen:
        return seen(x, 1.0, compact=self.compact)

    @property
    def squares(self) -> tuple[str, ...]:
        return ("v",)

    def local(
        self, grad: Grad, down: Shared, local: Seen, batches: Batches
    ) -> tuple[Seen, Message]:
        x, v, d, t = down
        rates = along(self.eta, t, len(batches))
        if self.compact:
            d = derived_direction(x, local)
        if self.v_wire == "block":
            v = spread(v, self.blocks or (len(x),))
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
        rates = along(self.eta, shared.t, info.steps)
        d = shared.d if self.compact else mean_direction(mean.delta, rates)
        return Shared(shared.x + self.eta_g * mean.delta, mean.v, d, shared.t + info.steps)

    def bind_model(self, shapes: Sequence[Sequence[int]]) -> Self:
        if self.v_wire == "block" and not self.blocks:
            return replace(self, blocks=tuple(math.prod(shape) for shape in shapes))
        return self

    def sent(self, v: Tensor) -> Tensor:
        """What travels of v. Without a known model, x is one block."""
        return block_means(v, self.blocks or (len(v),)) if self.v_wire == "block" else v
