"""Fed-GLOMO (Das et al., UAI 2022, https://arxiv.org/abs/2012.04061).

    D(w):  z_0 = w;   v = g_i(z_0);   z_1 = z_0 - eta v
           v = g_i(z_k) + lam (v - g_i(z_{k-1})),  both on one batch;   z_{k+1} = z_k - eta v
           D(w) = w - z_q
    G = mean_i D(x_k);   dG = mean_i (D(x_k) - D(x_{k-1})),  both D on the same batches
    u <- beta G + (1 - beta) (u + dG),   u = G in the first round;   x_{k+1} = x_k - u

Both sequences of steps, from x_k and from x_{k-1}, advance batch by batch, so that they share
samples and dropout masks. In the first round there is one sequence, and one vector each way instead
of two. u contains the factor eta, so eta must be a constant.

Departures from the paper: messages are not quantised. The first gradient of a round is by default
on an ordinary batch (`anchor="step"`); "batch" takes one larger batch, "full" the shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm, Exchange, RoundInfo, counter
from fafed.core.batch import Batch, Batches, Draw
from fafed.core.gradient import Grad
from fafed.core.hyper import above, between, hyper, one_of
from fafed.core.schedules import Rate, at


class Shared(NamedTuple):
    x: Tensor
    before: Tensor  # the x of the round before; empty in the first round
    u: Tensor  # estimate of the mean displacement
    t: Tensor  # steps made


class Down(NamedTuple):
    x: Tensor
    before: Tensor


class Message(NamedTuple):
    d: Tensor  # displacement from x
    change: Tensor  # its difference from the displacement from `before`; empty in the first round


class Lane(NamedTuple):
    z: Tensor
    before: Tensor | None = None
    v: Tensor | None = None


@dataclass(frozen=True)
class FedGLOMO(Algorithm[Shared, Down, tuple[()], Message]):
    """Variance reduction twice: in the local steps and from round to round.

    Use it when gradients are cheap and clients should keep nothing between rounds.
    Beware: four gradients per local step (two in the first of a round). eta must be a constant, and
    with lam = 1 the noise of a round's first gradient stays to the end of the round.
    """

    eta: float = hyper(0.01, above(0), "the local step size")
    beta: Rate = hyper(
        0.2, between(0, 1, schedule=True), "the share of new information in u: 1 forgets the past"
    )
    lam: float = hyper(1.0, between(0, 1), "the memory of the local v: 0 is plain local SGD")
    anchor: str = hyper(
        "step", one_of("step", "batch", "full"), "the data of the first gradient of a round"
    )

    def init(self, x: Tensor) -> Shared:
        return Shared(x, x[:0], torch.zeros_like(x), counter(x))

    def exchanges(self) -> tuple[Exchange, ...]:
        extra: dict[str, tuple[Draw, ...]] = {"step": (), "batch": ("anchor",), "full": ("full",)}
        return (Exchange(self.local, self.server, self.send, ("round", *extra[self.anchor])),)

    def send(self, shared: Shared) -> Down:
        return Down(shared.x, shared.before)

    def local(
        self, grad: Grad, down: Down, local: tuple[()], batches: Batches
    ) -> tuple[tuple[()], Message]:
        lanes = [Lane(start) for start in down if len(start)]
        for k, batch in enumerate(batches):
            data = batch if k else self.first(batch, batches)
            lanes = [self.step(grad, lane, data) for lane in lanes]
        moves = [start - lane.z for start, lane in zip(down, lanes, strict=False)]
        d = moves[0]
        return local, Message(d, d - moves[1] if len(moves) > 1 else d[:0])

    def first(self, batch: Batch, batches: Batches) -> Batch:
        match self.anchor:
            case "batch":
                return batches.anchor.for_step()
            case "full":
                return batches.full.for_step()
            case _:
                return batch

    def step(self, grad: Grad, lane: Lane, batch: Batch) -> Lane:
        z, before, v = lane
        g = grad(z, batch)
        if self.lam and v is not None and before is not None:
            g = g + self.lam * (v - grad(before, batch))
        return Lane(z - self.eta * g, z, g)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        x, before, u, t = shared
        t = t + info.steps
        if len(before):
            beta = at(self.beta, t)
            u = beta * mean.d + (1 - beta) * (u + mean.change)
        else:
            u = mean.d
        return Shared(x - u, x, u, t)
