"""FedExP (Jhunjhunwala et al., ICLR 2023, https://arxiv.org/abs/2301.09604).

    y <- x;  repeat q times:  y <- y - eta g_i(y);   D_i = y - x
    eta_g <- max(1, mean_i |D_i|^2 / (2 (|mean_i D_i|^2 + eps)));   x <- x + eta_g mean_i D_i

If the clients' moves point in different directions, their mean is short, and the server makes a
larger step. If they are the same, eta_g is 1. The scalar |D_i|^2 travels with the move, so the
server needs no more than means.

x oscillates, so the paper returns the mean of the last two models, and so does `average=True` (the
default): x in records, evaluations and results is that mean. Clients always begin at the last one.

Departure from the paper: weights of clients, if given, weigh both means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, at_least, hyper, switch
from fafed.core.schedules import Rate, along


class Shared(NamedTuple):
    x: Tensor  # average: the mean of the last two models
    last: Tensor  # average: the last model; else empty
    t: Tensor  # steps made
    eta_g: Tensor  # the server's last step size


class Down(NamedTuple):
    x: Tensor  # the last model
    t: Tensor


class Message(NamedTuple):
    delta: Tensor
    square: Tensor  # |delta|^2, a scalar


@dataclass(frozen=True)
class FedExP(Algorithm[Shared, Down, tuple[()], Message]):
    """FedAvg whose server chooses its step size by how much the clients' moves differ.

    Use it when FedAvg is too slow and no further step size is to be tuned: one vector each way,
    nothing to keep.
    Beware: the bias of local steps remains. Large steps oscillate. The result is the mean of the
    last two models, while clients begin at the last.
    """

    eta: Rate = hyper(0.1, above(0, schedule=True), "the local step size")
    eps: float = hyper(1e-3, at_least(0), "it keeps eta_g from growing when moves become short")
    average: bool = hyper(True, switch, "return the mean of the last two models, as in the paper")

    def init(self, x: Tensor) -> Shared:
        one = torch.ones((), dtype=x.dtype, device=x.device)
        return Shared(x, x if self.average else x[:0], counter(x), one)

    @property
    def squares(self) -> tuple[str, ...]:
        return ("square",)

    def send(self, shared: Shared) -> Down:
        return Down(shared.last if self.average else shared.x, shared.t)

    def local(
        self, grad: Grad, down: Down, local: tuple[()], batches: Batches
    ) -> tuple[tuple[()], Message]:
        x, t = down
        delta = grad.sgd_steps(x, along(self.eta, t, len(batches)), batches) - x
        return local, Message(delta, delta @ delta)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        delta, square = mean
        ratio = square / (2 * (delta @ delta + self.eps))
        eta_g = torch.where(torch.isfinite(ratio), ratio, 1.0).clamp(min=1.0)  # 0 / 0: no move
        old, t = self.send(shared)
        x, t = old + eta_g * delta, t + info.steps
        if self.average:
            return Shared((old + x) / 2, x, t, eta_g)
        return Shared(x, shared.last, t, eta_g)

    def diagnostics(self, shared: Shared) -> Mapping[str, Tensor]:
        return {"eta_g": shared.eta_g}
