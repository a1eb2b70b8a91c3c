"""FedPAC (Liu et al. 2026, https://arxiv.org/abs/2602.19271) with SOAP as its local optimiser.

For a matrix W (m x n) of the model, and its part G of a gradient:

    L <- Lbar;  R <- Rbar;  U, V <- eigenvectors of L, R;  M <- 0;  S <- 0;  y <- x
    repeat q times, the k-th:
        G = g_i(y);   M <- beta1 M + (1 - beta1) G;   S <- beta2 S + (1 - beta2) (U'G V)^2
        Mhat = U'M V / (1 - beta1^k);   Shat = S / (1 - beta2^k)
        P = U [Mhat / (sqrt(Shat) + eps)] V'
        y <- y - eta ((1 - alpha) (P + decay y) + alpha D)
        L <- beta L + (1 - beta) G G';   R <- beta R + (1 - beta) G'G
        if k is a multiple of `refresh`:   U, V <- Q factors of L U, R V
    D <- -mean_i(y - x) / (eta q);   x <- mean_i y;   Lbar, Rbar <- mean_i L, mean_i R

The paper lets the clients run any optimiser with a preconditioner. Alignment: the preconditioners
of the clients are averaged, and all begin a round with the mean. Correction: D, the mean direction
of the last round, is mixed into every step. The paper's forms are SOAP, Sophia and Muon. This is
the first one: Adam in the eigenbases of L and R. The third one is FedMuon, which averages M.

A tensor of two or more dimensions is a matrix: its first dimension by all others. A side of more
than `cap` numbers, or of one, has no basis: U or V is then the identity. Vectors make the steps of
Adam. In the first round L = R = 0, and every basis is the identity. The default `cap` is what
docs/which-algorithm.md measured: a basis for 784 inputs and 32 units takes a message of 25 vectors.

D is (x_old - x) / (eta q), so a client can compute it from two consecutive models. `wire="compact"`
(the default) uses this: it sends one vector less down, and the client keeps one.

Written from the paper's abstract, a summary of its update by others, and the authors' code. The
paper's full text was not at hand. What they leave open, or where they differ: only L and R are
averaged, as in the code, while M and S begin at 0. The code makes no step with the first gradient
of a round, since its bases begin with that gradient. Here the bases begin with Lbar and Rbar, as
the abstract says, and no step is lost. The code has a basis for each dimension of a convolution. If
eta changes within a round, eta q is the sum of the round's steps.

One thing is added. Directions that no gradient has had are equal for L, so their basis would be
decided by rounding errors. A ramp on the diagonal, tiny against the trace of L, decides instead. So
one back end gives the numbers of another, though with fewer equal digits than other methods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fafed.algorithms._adamw import decoupled_decay, floor, memory, unbiased
from fafed.algorithms._memo import Last
from fafed.algorithms._wire import CompactWire, Seen, derived_direction, mean_direction, seen, wire
from fafed.core.algorithm import RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import Rule, above, between, hyper, integer
from fafed.core.schedules import Rate, along
from fafed.core.vectors import step


class Shared(NamedTuple):
    x: Tensor
    lr: Tensor  # mean L and R of all matrices, one after another
    d: Tensor  # mean direction of the last round; compact: empty
    t: Tensor  # steps made


class Message(NamedTuple):
    delta: Tensor
    lr: Tensor


class Part(NamedTuple):
    """A tensor of the model as rows x columns, and which sides have a basis."""

    rows: int
    columns: int
    left: bool
    right: bool


class Bases(NamedTuple):
    left: Tensor | None
    right: Tensor | None

    def turned(self, G: Tensor) -> Tensor:
        """U'G V"""
        G = G if self.left is None else self.left.mT @ G
        return G if self.right is None else G @ self.right

    def back(self, G: Tensor) -> Tensor:
        """U G V'"""
        G = G if self.left is None else self.left @ G
        return G if self.right is None else G @ self.right.mT


@dataclass(frozen=True)
class FedPAC(CompactWire[Shared, Shared, Seen, Message]):
    """Local SOAP steps with shared first preconditioners, mixed with the last mean direction.

    Use it when layers are badly scaled and matrices beside the model are affordable on the wire.
    Beware: a layer of m x n sends m^2 + n^2 numbers more, each way. A round decomposes two matrices
    per layer, and a step has six products more. The default wire needs all clients in every round;
    wire="full" does not, and sends one vector more down.
    """

    eta: Rate = hyper(0.003, above(0, schedule=True), "the local step size")
    alpha: float = hyper(0.5, between(0, 1), "the share of the last mean direction in a local step")
    beta1: float = memory(0.95, "M")
    beta2: float = memory(0.95, "S")
    beta: float = memory(0.95, "L and R")
    refresh: int = hyper(10, integer(1), "local steps between two refreshes of the bases")
    eps: float = floor()
    decay: float = decoupled_decay(0.01)
    cap: int = hyper(512, integer(0), "the longest side with a basis; 0: none, which is Adam")
    wire: str = wire("compact derives D instead of sending it; it needs all clients")
    shapes: tuple[tuple[int, ...], ...] = hyper(
        (),
        Rule("shapes", lambda v: isinstance(v, tuple)),
        "those of the parameter tensors; filled in from the model",
    )

    def bind_model(self, shapes: Sequence[Sequence[int]]) -> Self:
        return self if self.shapes else replace(self, shapes=tuple(tuple(s) for s in shapes))

    def init(self, x: Tensor) -> Shared:
        lr = x.new_zeros(sum(side * side for side in self._sides))
        return Shared(x, lr, x[:0] if self.compact else torch.zeros_like(x), counter(x))

    def join(self, x: Tensor) -> Seen:
        return seen(x, 1.0, compact=self.compact)

    @property
    def products(self) -> tuple[str, ...]:
        return ("lr",)

    def local(
        self, grad: Grad, down: Shared, local: Seen, batches: Batches
    ) -> tuple[Seen, Message]:
        x, lr, d, t = down
        rates = along(self.eta, t, len(batches))
        if self.compact:
            d = derived_direction(x, local)
        bases = self._memo.get(lr, lambda: [basis(A) for A in self._squares(lr)])
        y, m, s = x, torch.zeros_like(x), torch.zeros_like(x)
        for k, (rate, batch) in enumerate(zip(rates, batches, strict=True), start=1):
            g = grad(y, batch)
            m = self.beta1 * m + (1 - self.beta1) * g
            s = self.beta2 * s + (1 - self.beta2) * self._turned(g, bases) ** 2
            mhat = unbiased(self._turned(m, bases), self.beta1, k)
            shat = unbiased(s, self.beta2, k)
            own = self._back(mhat / (shat.sqrt() + self.eps), bases) + self.decay * y
            y = step(y, rate, (1 - self.alpha) * own + self.alpha * d)
            lr = self.beta * lr + (1 - self.beta) * self._products(g)
            if k % self.refresh == 0 and k < len(batches):
                pairs = zip(self._squares(lr), bases, strict=True)
                bases = [refreshed(A, Q) for A, Q in pairs]
        return seen(x, sum(rates), compact=self.compact), Message(y - x, lr)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        rates = along(self.eta, shared.t, info.steps)
        d = shared.d if self.compact else mean_direction(mean.delta, rates)
        return Shared(shared.x + mean.delta, mean.lr, d, shared.t + info.steps)

    # The tensors of the model as matrices. Those with a basis have their L, then their R, in lr.

    @cached_property
    def _memo(self) -> Last[list[Tensor]]:
        return Last()

    @cached_property
    def _parts(self) -> tuple[Part, ...]:
        found = []
        for shape in self.shapes:
            size = math.prod(shape)
            rows = shape[0] if len(shape) > 1 and size else 1
            columns = size // rows
            matrix = min(rows, columns) > 1
            found.append(
                Part(rows, columns, matrix and rows <= self.cap, matrix and columns <= self.cap)
            )
        return tuple(found)

    @cached_property
    def _sides(self) -> list[int]:
        """The sizes of all L and R."""
        return [
            side
            for part in self._parts
            for side, has in ((part.rows, part.left), (part.columns, part.right))
            if has
        ]

    def _squares(self, lr: Tensor) -> list[Tensor]:
        if not self._sides:
            return []
        found = torch.split(lr, [side * side for side in self._sides])
        return [A.view(side, side) for A, side in zip(found, self._sides, strict=True)]

    def _matrices(self, x: Tensor) -> list[Tensor]:
        """x without shapes is one vector."""
        if not self._parts:
            return [x.view(1, -1)]
        split = torch.split(x, [part.rows * part.columns for part in self._parts])
        return [W.view(p.rows, p.columns) for W, p in zip(split, self._parts, strict=True)]

    def _products(self, g: Tensor) -> Tensor:
        """G G' and G'G of all matrices."""
        found = [g[:0]]
        for G, part in zip(self._matrices(g), self._parts, strict=bool(self._parts)):
            found += [(G @ G.mT).reshape(-1)] if part.left else []
            found += [(G.mT @ G).reshape(-1)] if part.right else []
        return torch.cat(found)

    def _pairs(self, bases: Sequence[Tensor]) -> list[Bases]:
        rest = iter(bases)
        return [
            Bases(next(rest) if part.left else None, next(rest) if part.right else None)
            for part in self._parts
        ] or [Bases(None, None)]

    def _turned(self, x: Tensor, bases: Sequence[Tensor]) -> Tensor:
        pairs = zip(self._matrices(x), self._pairs(bases), strict=True)
        return torch.cat([own.turned(G).reshape(-1) for G, own in pairs])

    def _back(self, x: Tensor, bases: Sequence[Tensor]) -> Tensor:
        pairs = zip(self._matrices(x), self._pairs(bases), strict=True)
        return torch.cat([own.back(G).reshape(-1) for G, own in pairs])


def decided(A: Tensor) -> Tensor:
    """A in float64, with a ramp on its diagonal that decides between equal eigenvalues."""
    tiny = math.sqrt(torch.finfo(A.dtype).eps)
    n = len(A)
    ramp = torch.arange(n, 0, -1, dtype=torch.float64, device=A.device) / n
    A = A.double()
    size = A.diagonal().abs().sum().clamp(min=1e-100)  # for A = 0 the basis is the identity
    return A + torch.diag(tiny * size * ramp)


def basis(A: Tensor) -> Tensor:
    """The eigenvectors of a symmetric matrix, that of the largest eigenvalue first."""
    U: Tensor = torch.linalg.eigh(decided(A))[1]
    return U.flip(-1).to(A.dtype)


def refreshed(A: Tensor, Q: Tensor) -> Tensor:
    """One step of orthogonal iteration, which moves Q towards the eigenvectors of A."""
    found: Tensor = torch.linalg.qr(decided(A) @ Q.double())[0]
    return found.to(A.dtype)
