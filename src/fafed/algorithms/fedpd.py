"""FedPD (Zhang et al., IEEE TSP 2021, https://arxiv.org/abs/2005.11418).

    y <- x_i;  repeat q times:  y <- y - eta (g + lam_i + mu (y - x));   x_i <- y
    lam_i <- lam_i + mu (x_i - x);   z_i <- x_i + lam_i / mu
    x <- mean_i z_i, or in a silent round each client's own x <- z_i

    oracle I    g = g_i(y)
    oracle II   g = grad f_i(y) on the whole shard at the start of every `period`-th round, and
                after each move to y' from y:  g <- g + g_i(y') - g_i(y), both on the step's batch

mu is the paper's 1/eta, and eta is the paper's eta_1. eta (L + mu) < 2 is needed. The local steps
start from the client's own last solution, not from x.

A round may be silent. Only every `every`-th round is not, and with probability p it is silent, too.
One random draw, a function of (seed, round), decides for all clients, because a mean over some of
them would mix old and new. Nothing goes up in a silent round or down after it, and the server's x
does not change. If clients differ, silent rounds bring back the bias of local steps that FedPD
otherwise removes. Duals of absent clients would become outdated, so all clients must take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.core import randomness
from fafed.core.algorithm import Algorithm, Exchange, RoundInfo, counter
from fafed.core.batch import Batches, Draw
from fafed.core.gradient import Grad
from fafed.core.hyper import above, fraction, hyper, integer, one_of
from fafed.core.schedules import Rate, at


class Shared(NamedTuple):
    x: Tensor
    t: Tensor  # steps made
    r: Tensor  # rounds made


class Local(NamedTuple):
    x: Tensor  # this client's last solution
    lam: Tensor  # its dual
    z: Tensor  # where it continues after a silent round; else empty
    g: Tensor  # oracle II: its estimate of the gradient at x; else empty


class Message(NamedTuple):
    x: Tensor  # z, of which x is the mean; empty in a silent round


@dataclass(frozen=True)
class FedPD(Algorithm[Shared, Shared, Local, Message]):
    """Primal-dual steps: each client's dual learns how its gradient differs from the mean.

    Use it when data differ and all clients take part: no bias of local steps, at FedAvg's cost in
    bytes and gradients.
    Beware: eta (L + mu) < 2 is needed, a client keeps two vectors, and no client may be absent.
    Silent rounds (every, p) bring the bias back if clients differ.
    """

    eta: Rate = hyper(0.1, above(0, schedule=True), "the local step size")
    mu: float = hyper(1.0, above(0), "how strongly a client is held back, 1/eta of the paper")
    oracle: str = hyper("I", one_of("I", "II"), "plain local steps, or variance-reduced ones")
    period: int = hyper(1, integer(1), "oracle II: rounds from one full gradient to the next")
    every: int = hyper(1, integer(1), "clients and server talk in every so many-th round only")
    p: float = hyper(
        0.0,
        fraction,
        "the chance that such a round is silent after all",
    )
    seed: int = hyper(0, integer(0), "of the coin that decides so")

    @property
    def requires_all_clients(self) -> bool:
        return True

    def talks(self, r: Tensor) -> bool:
        """Whether round r = 1, 2, ... ends with an exchange."""
        coin = randomness.uniform(randomness.keys("fedpd", self.seed, int(r)))
        return int(r) % self.every == 0 and bool(coin >= self.p)

    @property
    def may_be_silent(self) -> bool:
        return self.every > 1 or self.p > 0

    def init(self, x: Tensor) -> Shared:
        return Shared(x, counter(x), counter(x))

    def join(self, x: Tensor) -> Local:
        zero = torch.zeros_like(x)
        return Local(
            x, zero, x if self.may_be_silent else x[:0], zero if self.oracle == "II" else x[:0]
        )

    def exchanges(self) -> tuple[Exchange, ...]:
        draw: tuple[Draw, ...] = ("round", "full") if self.oracle == "II" else ("round",)
        return (Exchange(self.local, self.server, self.send, draw),)

    def send(self, shared: Shared) -> Shared:
        x, t, r = shared
        known = int(r) > 0 and not self.talks(r)  # each client has its own x since the last round
        return Shared(x[:0] if known else x, t, r)

    def local(
        self, grad: Grad, down: Shared, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        x = down.x if len(down.x) else local.z
        y, lam, _, g = local
        recursive = self.oracle == "II"
        if recursive and int(down.r) % self.period == 0:
            g = grad(y, batches.full)
        for k, batch in enumerate(batches, start=1):
            if not recursive:
                g = grad(y, batch)
            before, y = y, y - at(self.eta, down.t + k) * (g + lam + self.mu * (y - x))
            if recursive:
                g = g + grad(y, batch) - grad(before, batch)
        lam = lam + self.mu * (y - x)
        z = y + lam / self.mu
        kept = Local(y, lam, z if self.may_be_silent else z[:0], g if recursive else g[:0])
        return kept, Message(z if self.talks(down.r + 1) else z[:0])

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        x = mean.x if len(mean.x) else shared.x
        return Shared(x, shared.t + info.steps, shared.r + 1)
