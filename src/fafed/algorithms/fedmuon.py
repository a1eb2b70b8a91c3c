"""FedMuon (Liu et al. 2025, https://arxiv.org/abs/2510.27403): Muon on the clients.

    M <- Mbar;  y <- x
    repeat q times, for each matrix of y:
        M <- beta M + g_i(y);   y <- y - eta ((1 - alpha) O(M) + alpha D + decay y)
    D <- -mean_i(y - x) / (eta q);   x <- mean_i y;   Mbar <- mean_i M

O(M) is M with all singular values near 1, times 0.2 sqrt(max(rows, columns)), which gives a step
about the size of one of AdamW. It is found by five steps of Newton and Schulz from X = M / |M|:
X <- 3.4445 X - 4.7750 (X X') X + 2.0315 (X X')^2 X. D is the mean direction of the last round.

A parameter tensor with two or more dimensions is a matrix: its first dimension by all others. If
one of the two sides is 1 it is not. What is not a matrix (biases, norms) makes the same step with
another direction. others="adamw": that of AdamW, whose m restarts at 0 in each round while v begins
with the mean of the clients' v (as in FedAdamW). others="sgd": its own M instead of O(M). Either
way one number per parameter travels beside the model: two vectors each way.

D is (x_old - x) / (eta q), so a client can compute it from two consecutive models. `wire="compact"`
(the default) uses this: it sends one vector less down, and the client keeps one.

If clients differ, local Muon need not approach a stationary point (Takezawa et al. 2025, arXiv
2509.26337): the mean of orthogonal directions is not the direction of the mean. Two clients with a
matrix quadratic each (q = 5, eta = 0.05) end more than 0.8 from the optimum with beta = 0, with D
or without it. The shared momentum helps: with beta = 0.9 they end less than 0.1 away.

Departures from the paper: the paper writes O(M) with a singular value decomposition and does not
say how vectors travel. The scale 0.2 sqrt(max(rows, columns)) is that of later work on Muon. If eta
changes within a round, eta q is the sum of the round's steps.

The update of the matrices agrees with a summary of the paper by others; the paper's full text was
not at hand. The authors' code for FedPAC has FedMuon, too. It calls a package of Muon for the
steps, with a step size of its own for matrices and (1 - alpha) times the decay. Its vectors make
steps of Adam, whose moments begin anew in every round and do not travel. Sending the mean v of
vectors, as here, is fafed's choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fafed.algorithms._adamw import AdamW, Moments, decoupled_decay, floor, memory
from fafed.algorithms._wire import CompactWire, Seen, derived_direction, mean_direction, seen, wire
from fafed.core.algorithm import RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import Rule, above, between, hyper, integer, one_of
from fafed.core.schedules import Rate, along
from fafed.core.vectors import step

Shapes = tuple[tuple[int, ...], ...]


class Shared(NamedTuple):
    x: Tensor
    m: Tensor  # mean momentum of the matrices
    other: Tensor  # of what is not a matrix: mean v (adamw) or momentum (sgd)
    d: Tensor  # mean direction of the last round; compact: empty
    t: Tensor  # steps made


class Message(NamedTuple):
    delta: Tensor
    m: Tensor
    other: Tensor


@dataclass(frozen=True)
class FedMuon(CompactWire[Shared, Shared, Seen, Message]):
    """Local steps whose matrices are made orthogonal, mixed with the last mean direction.

    Use it when the model is made of matrices and two vectors each way are affordable.
    Beware: if clients differ, some bias remains. A step costs a few products of matrices more. The
    default wire needs all clients in every round; wire="full" does not, and sends one vector more
    down.
    """

    eta: Rate = hyper(0.01, above(0, schedule=True), "the local step size")
    alpha: float = hyper(0.5, between(0, 1), "the share of the last mean direction in a local step")
    beta: float = memory(0.95, "M")
    newton_schulz: int = hyper(5, integer(1), "steps of Newton and Schulz")
    others: str = hyper("adamw", one_of("adamw", "sgd"), "the steps of what is not a matrix")
    beta1: float = memory(0.9, "m of others='adamw'")
    beta2: float = memory(0.999, "v of others='adamw'")
    eps: float = floor()
    decay: float = decoupled_decay(0.0)
    wire: str = wire("compact derives D instead of sending it; it needs all clients")
    shapes: Shapes = hyper(
        (),
        Rule("shapes", lambda v: isinstance(v, tuple)),
        "those of the parameter tensors; filled in from the model",
    )

    def init(self, x: Tensor) -> Shared:
        m, other = self.parted(torch.zeros_like(x))
        return Shared(x, m, other, x[:0] if self.compact else torch.zeros_like(x), counter(x))

    def join(self, x: Tensor) -> Seen:
        return seen(x, 1.0, compact=self.compact)

    @property
    def squares(self) -> tuple[str, ...]:
        return ("other",) if self.others == "adamw" else ()

    def bind_model(self, shapes: Sequence[Sequence[int]]) -> Self:
        return self if self.shapes else replace(self, shapes=tuple(tuple(s) for s in shapes))

    def local(
        self, grad: Grad, down: Shared, local: Seen, batches: Batches
    ) -> tuple[Seen, Message]:
        x, m, other, d, t = down
        rates = along(self.eta, t, len(batches))
        if self.compact:
            d = derived_direction(x, local)
        adamw = AdamW(self.beta1, self.beta2, self.eps, 0.0)
        y, first = x, torch.zeros_like(other)
        for k, (rate, batch) in enumerate(zip(rates, batches, strict=True), start=1):
            g, g_other = self.parted(grad(y, batch))
            m = self.beta * m + g
            if self.others == "adamw":
                first, other = adamw.moments(Moments(first, other), g_other)
                direction = adamw.direction(other, Moments(first, other), k, t + k)
            else:
                other = direction = self.beta * other + g_other
            own = self.joined(self.orthogonal(m), direction)
            y = step(y, rate, (1 - self.alpha) * own + self.alpha * d + self.decay * y)
        now = seen(x, sum(rates), compact=self.compact)
        return now, Message(y - x, m, other)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        rates = along(self.eta, shared.t, info.steps)
        d = shared.d if self.compact else mean_direction(mean.delta, rates)
        return Shared(shared.x + mean.delta, mean.m, mean.other, d, shared.t + info.steps)

    # The matrices, one after another, and the rest.

    def sides(self, d: int) -> list[tuple[int, int]]:
        """Rows and columns of each tensor. Rows are 1 if it is not a matrix."""
        found = []
        for shape in self.shapes or ((d,),):
            size = math.prod(shape)
            rows = shape[0] if len(shape) > 1 and min(shape[0], size // shape[0]) > 1 else 1
            found.append((rows, size // rows))
        return found

    def parted(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of all matrices, and those of the rest."""
        sides = self.sides(len(vector))
        parts = torch.split(vector, [rows * columns for rows, columns in sides])
        none = vector[:0]
        matrices, rest = [none], [none]
        for (rows, _), part in zip(sides, parts, strict=True):
            (matrices if rows > 1 else rest).append(part)
        return torch.cat(matrices), torch.cat(rest)

    def joined(self, matrices: Tensor, rest: Tensor) -> Tensor:
        """The inverse of `parted`."""
        sides = self.sides(len(matrices) + len(rest))
        sources, parts = [matrices, rest], []
        for rows, columns in sides:
            which = 0 if rows > 1 else 1
            size = rows * columns
            parts.append(sources[which][:size])
            sources[which] = sources[which][size:]
        return torch.cat(parts)

    def orthogonal(self, m: Tensor) -> Tensor:
        """O(M) of all matrices."""
        sides = [(rows, columns) for rows, columns in self.sides(len(m)) if rows > 1]
        parts = torch.split(m, [rows * columns for rows, columns in sides]) if len(m) else ()
        done = [m[:0]]
        for side, part in zip(sides, parts, strict=True):
            found = orthogonal(part.view(side), self.newton_schulz)
            done.append(0.2 * math.sqrt(max(side)) * found.reshape(-1))
        return torch.cat(done)


def orthogonal(M: Tensor, steps: int) -> Tensor:
    """M with singular values near 1."""
    wide = M.shape[0] <= M.shape[1]
    X: Tensor = (M if wide else M.mT) / (M.norm() + 1e-7)
    for _ in range(steps):
        S = X @ X.mT
        X = 3.4445 * X + (-4.7750 * S + 2.0315 * S @ S) @ X
    return X if wide else X.transpose(0, 1)
