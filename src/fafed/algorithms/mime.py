"""Mime, MimeLite and MimeAdam (Karimireddy et al., NeurIPS 2021, https://arxiv.org/abs/2008.03606).

A base optimiser has two parts. U(g, s) is the direction of a local step, with statistics s that
local steps do not change. V(c, s) is their update, which the server makes once per round from
c = mean_i grad f_i(x):

    base      U(g, s)                                        V(c, s)
    sgd       g                                              -
    sgdm      (1 - beta1) g + beta1 m                        m <- (1 - beta1) c + beta1 m
    adam      ((1 - beta1) g + beta1 m) / (sqrt(v) + tau)    v <- (1 - beta2) c^2 + beta2 v, too
    adagrad   g / (sqrt(v) + tau)                            v <- v + c^2

    y <- x;  repeat q times:  y <- y - eta U(g, s)
    MimeLite   g = g_i(y)
    Mime       g = g_i(y) - g_i(x) + c                       both g_i on the step's batch
    x <- x + eta_g mean_i(y - x);   s <- V(c, s)

Mime needs c before its local steps. So it has two exchanges per round: x down and grad f_i(x) up,
then s and c down and y up. MimeAdam is Mime with the base adam.

Departures from the paper: m and v start at c and c^2 of x_0, unless `cold_start`. Starting at zero
makes adam's first round divide by tau. There is no bias correction. `anchor="batch"` takes one
larger batch for grad f_i(x) instead of the whole shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm, Exchange, RoundInfo, counter
from fafed.core.batch import Batch, Batches, Draw
from fafed.core.gradient import Grad
from fafed.core.hyper import above, between, hyper, one_of, switch
from fafed.core.schedules import Rate, at
from fafed.core.tree import Tree
from fafed.core.vectors import step


class Shared(NamedTuple):
    x: Tensor
    m: Tensor  # empty if the base has none
    v: Tensor  # empty if the base has none
    c: Tensor  # Mime, between the two exchanges of a round: mean gradient at x; else empty
    t: Tensor  # steps made


class Point(NamedTuple):
    x: Tensor


class Gradient(NamedTuple):
    h: Tensor


class Local(NamedTuple):
    x: Tensor  # the model of this round, between its two exchanges; else empty


class Message(NamedTuple):
    delta: Tensor


class LiteMessage(NamedTuple):
    delta: Tensor
    h: Tensor  # gradient at x; empty if the base has no statistics


Kept = TypeVar("Kept", bound=Tree)  # by a client
Sent = TypeVar("Sent", bound=Tree)  # by a client


@dataclass(frozen=True)
class BaseOptimiser(Algorithm[Shared, Shared, Kept, Sent]):
    """The common part of Mime and MimeLite: U, V and the anchor."""

    eta: Rate = hyper(0.03, above(0, schedule=True), "the local step size")
    eta_g: float = hyper(1.0, above(0), "the server's step size")
    base: str = hyper("sgdm", one_of("sgd", "sgdm", "adam", "adagrad"), "the optimiser to mimic")
    beta1: float = hyper(0.9, between(0, 1), "the memory of m")
    beta2: float = hyper(0.99, between(0, 1), "the memory of v")
    tau: float = hyper(1e-3, above(0), "the smallest denominator; tune it with eta")
    anchor: str = hyper("full", one_of("full", "batch"), "the data of the gradient at x")
    cold_start: bool = hyper(False, switch, "start m and v at zero, as the paper does")

    @property
    def has_m(self) -> bool:
        return self.base in ("sgdm", "adam")

    @property
    def has_v(self) -> bool:
        return self.base in ("adam", "adagrad")

    @property
    def anchor_draw(self) -> Draw:
        return "full" if self.anchor == "full" else "anchor"

    def anchor_batch(self, batches: Batches) -> Batch:
        return batches.full if self.anchor == "full" else batches.anchor

    def init(self, x: Tensor) -> Shared:
        zero, none = torch.zeros_like(x), x[:0]
        m, v = zero if self.has_m else none, zero if self.has_v else none
        return Shared(x, m, v, none, counter(x))

    def started(self, shared: Shared, c: Tensor) -> Shared:
        """The statistics after a first gradient."""
        return shared._replace(m=c if self.has_m else c[:0], v=c**2 if self.has_v else c[:0])

    def direction(self, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
        """U."""
        if self.has_m:
            g = (1 - self.beta1) * g + self.beta1 * m
        return g / (v.sqrt() + self.tau) if self.has_v else g

    def renewed(self, c: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """V."""
        if self.has_m:
            m = (1 - self.beta1) * c + self.beta1 * m
        if self.base == "adam":
            v = (1 - self.beta2) * c**2 + self.beta2 * v
        elif self.base == "adagrad":
            v = v + c**2
        return m, v


@dataclass(frozen=True)
class Mime(BaseOptimiser[Local, Message]):
    """Clients make the steps of a server's optimiser, corrected by the mean gradient.

    Use it when data differ, clients come and go, and computing is cheap: no bias of local steps and
    nothing to keep between rounds.
    Beware: two exchanges per round, two gradients per step, and each round a pass over the client's
    whole data, unless anchor="batch".
    """

    def join(self, x: Tensor) -> Local:
        return Local(x[:0])

    def exchanges(self) -> tuple[Exchange, ...]:
        return (
            Exchange(self.gradient, self.collect, lambda s: Point(s.x), (self.anchor_draw,)),
            Exchange(self.local, self.server, self.send),
        )

    def gradient(
        self, grad: Grad, down: Point, local: Local, batches: Batches
    ) -> tuple[Local, Gradient]:
        return Local(down.x), Gradient(grad(down.x, self.anchor_batch(batches)))

    def collect(self, shared: Shared, mean: Gradient, info: RoundInfo) -> Shared:
        if int(shared.t) == 0 and not self.cold_start:
            shared = self.started(shared, mean.h)
        return shared._replace(c=mean.h)

    def send(self, shared: Shared) -> Shared:
        return shared._replace(x=shared.x[:0])  # the clients have just received x

    def local(
        self, grad: Grad, down: Shared, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        (_, m, v, c, t), x = down, local.x
        y = x
        for k, batch in enumerate(batches, start=1):
            g = grad(y, batch) - grad(x, batch) + c
            y = step(y, at(self.eta, t + k), self.direction(g, m, v))
        return Local(x[:0]), Message(y - x)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        x, m, v, c, t = shared
        m, v = self.renewed(c, m, v)
        return Shared(x + self.eta_g * mean.delta, m, v, c[:0], t + info.steps)


@dataclass(frozen=True)
class MimeLite(BaseOptimiser[tuple[()], LiteMessage]):
    """Clients make the steps of a server's optimiser, without Mime's correction.

    Use it when local steps should use momentum or Adam's scale at one gradient each, in one
    exchange, with nothing to keep between rounds.
    Beware: the drift of local steps remains (with base="sgd" it is FedAvg), and the statistics
    still take a pass over the client's whole data each round, unless anchor="batch".
    """

    @property
    def has_statistics(self) -> bool:
        return self.has_m or self.has_v

    def opening(self) -> tuple[Exchange, ...]:
        if self.cold_start or not self.has_statistics:
            return ()
        return (Exchange(self.gradient, self.start, lambda s: Point(s.x), (self.anchor_draw,)),)

    def gradient(
        self, grad: Grad, down: Point, local: tuple[()], batches: Batches
    ) -> tuple[tuple[()], Gradient]:
        return local, Gradient(grad(down.x, self.anchor_batch(batches)))

    def start(self, shared: Shared, mean: Gradient, info: RoundInfo) -> Shared:
        return self.started(shared, mean.h)

    def exchanges(self) -> tuple[Exchange, ...]:
        extra = (self.anchor_draw,) if self.has_statistics else ()
        return (Exchange(self.local, self.server, self.send, ("round", *extra)),)

    def local(
        self, grad: Grad, down: Shared, local: tuple[()], batches: Batches
    ) -> tuple[tuple[()], LiteMessage]:
        x, m, v, _, t = down
        y = x
        for k, batch in enumerate(batches, start=1):
            y = step(y, at(self.eta, t + k), self.direction(grad(y, batch), m, v))
        h = grad(x, self.anchor_batch(batches)) if self.has_statistics else x[:0]
        return local, LiteMessage(y - x, h)

    def server(self, shared: Shared, mean: LiteMessage, info: RoundInfo) -> Shared:
        x, m, v, none, t = shared
        m, v = self.renewed(mean.h, m, v)
        return Shared(x + self.eta_g * mean.delta, m, v, none, t + info.steps)


@dataclass(frozen=True)
class MimeAdam(Algorithm[Shared, Shared, Local, Message]):
    """Mime with Adam as the optimiser whose steps the clients make.

    Use it when Mime fits and coordinates differ in scale.
    Beware: four vectors down and two exchanges per round, two gradients per step, and a pass over
    the client's whole data, unless anchor="batch". tau and eta must be chosen together.
    """

    eta: Rate = hyper(0.001, above(0, schedule=True), "the local step size")
    eta_g: float = hyper(1.0, above(0), "the server's step size")
    beta1: float = hyper(0.9, between(0, 1), "the memory of m")
    beta2: float = hyper(0.99, between(0, 1), "the memory of v")
    tau: float = hyper(1e-3, above(0), "the smallest denominator; tune it with eta")
    anchor: str = hyper("full", one_of("full", "batch"), "the data of the gradient at x")
    cold_start: bool = hyper(False, switch, "start m and v at zero, as the paper does")

    @cached_property
    def mime(self) -> Mime:
        return Mime(
            eta=self.eta,
            eta_g=self.eta_g,
            base="adam",
            beta1=self.beta1,
            beta2=self.beta2,
            tau=self.tau,
            anchor=self.anchor,
            cold_start=self.cold_start,
        )

    def init(self, x: Tensor) -> Shared:
        return self.mime.init(x)

    def join(self, x: Tensor) -> Local:
        return self.mime.join(x)

    def exchanges(self) -> tuple[Exchange, ...]:
        return self.mime.exchanges()

    def local(
        self, grad: Grad, down: Shared, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        return self.mime.local(grad, down, local, batches)

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        return self.mime.server(shared, mean, info)
