"""FedAdam, FedYogi, FedAdagrad (Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295)
and FedAMS (Wang et al., ICML 2022, https://arxiv.org/abs/2205.02719): one local part, four
server rules.

Clients make FedAvg's local steps. The server treats D = mean_i(x_i - x) as a negative gradient. All
four have m <- beta1 m + (1 - beta1) D, which starts at 0. They differ in v:

    FedAdam      v <- beta2 v + (1 - beta2) D^2                  x <- x + eta_g m / (sqrt(v) + tau)
    FedYogi      v <- v - (1 - beta2) D^2 sign(v - D^2)          the same
    FedAdagrad   v <- v + D^2                                    the same
    FedAMS       v as FedAdam;  vhat <- max(vhat, v, tau^2)      x <- x + eta_g m / sqrt(vhat)
    FedAMS, option="amsgrad"    vhat <- max(vhat, v)           x <- x + eta_g m / (sqrt(vhat) + tau)

v starts at tau^2 (FedAMS: 0). No bias correction, as in the papers, unless asked for. FedAMS's
paper calls its floor eps: tau^2 in the first option, tau in the second, so that tau is the
smallest denominator in all four.

eta_g may be a schedule. It is read at the last local step of the round. m / sqrt(v) does not shrink
with eta, so a run whose steps shall fall needs both.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm, RoundInfo, counter
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.hyper import above, at_least, between, hyper, one_of, optional, switch
from fafed.core.schedules import Rate, along, at


class Down(NamedTuple):
    x: Tensor
    t: Tensor


class Message(NamedTuple):
    delta: Tensor


class Shared(NamedTuple):
    x: Tensor
    m: Tensor
    v: Tensor
    t: Tensor  # local steps made
    r: Tensor  # server steps made


class SharedAMS(NamedTuple):
    x: Tensor
    m: Tensor
    v: Tensor
    vhat: Tensor  # largest v so far
    t: Tensor
    r: Tensor


def unbias(moment: Tensor, beta: float, r: Tensor) -> Tensor:
    return moment / (1 - beta ** r.double())


class Counted(Protocol):
    """The fields of every server state."""

    @property
    def x(self) -> Tensor: ...
    @property
    def t(self) -> Tensor: ...  # steps made


State = TypeVar("State", bound=Counted)


@dataclass(frozen=True)
class ServerOptimiser(Algorithm[State, Down, tuple[()], Message]):
    """The local part of all four."""

    eta: Rate = hyper(0.1, above(0, schedule=True), "the local step size")
    eta_g: Rate = hyper(0.01, above(0, schedule=True), "the server's step size")
    beta1: float = hyper(0.9, between(0, 1), "the memory of m")
    tau: float = hyper(1e-3, above(0), "the smallest denominator")

    def send(self, shared: State) -> Down:
        return Down(shared.x, shared.t)

    def local(
        self, grad: Grad, down: Down, local: tuple[()], batches: Batches
    ) -> tuple[tuple[()], Message]:
        x, t = down
        x = grad.sgd_steps(x, along(self.eta, t, len(batches)), batches)
        return local, Message(x - down.x)


@dataclass(frozen=True)
class FedOpt(ServerOptimiser[Shared]):
    """The server part of the first three."""

    v0: float | None = hyper(None, optional(at_least(0)), "where v starts; tau^2 if None")

    @abstractmethod
    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor: ...

    def corrected(self, m: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        return m, v

    def init(self, x: Tensor) -> Shared:
        start = self.tau**2 if self.v0 is None else self.v0
        return Shared(x, torch.zeros_like(x), torch.full_like(x, start), counter(x), counter(x))

    def server(self, shared: Shared, mean: Message, info: RoundInfo) -> Shared:
        x, m, v, t, r = shared
        m = self.beta1 * m + (1 - self.beta1) * mean.delta
        v = self.second_moment(v, mean.delta)
        first, second = self.corrected(m, v, r + 1)
        t = t + info.steps
        x = x + at(self.eta_g, t) * first / (second.sqrt() + self.tau)
        return Shared(x, m, v, t, r + 1)


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """FedAvg's local steps, and Adam's rule on the server.

    Use it when coordinates differ in scale and clients should stay as cheap as FedAvg's, without
    state.
    Beware: there are two step sizes and tau to choose. It converges to the same point as FedAvg: a
    server that adapts cannot remove the drift of local steps.
    """

    beta2: float = hyper(0.99, between(0, 1), "the memory of v")
    bias_correction: bool = hyper(False, switch, "divide m and v as Adam does; not in the paper")

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * delta**2

    def corrected(self, m: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        if not self.bias_correction:
            return m, v
        return unbias(m, self.beta1, r), unbias(v, self.beta2, r)


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """FedAdam with a second moment that changes by at most (1 - beta2) D^2 in a round.

    Use it when updates vary in size from round to round: after a large one v falls slowly, and
    steps stay short for longer than FedAdam's.
    Beware: as for FedAdam, two step sizes and tau to choose, and the drift of local steps remains.
    """

    beta2: float = hyper(0.99, between(0, 1), "how slowly v follows")

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return v - (1 - self.beta2) * delta**2 * torch.sign(v - delta**2)


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    """FedAvg's local steps, and Adagrad's rule on the server.

    Use it when the server's steps should shrink by themselves, without a schedule.
    Beware: v never decreases, so large updates at the start shorten all later steps. As for
    FedAdam, the drift of local steps remains.
    """

    eta_g: Rate = hyper(0.03, above(0, schedule=True), "the server's step size")
    beta1: float = hyper(0.0, between(0, 1), "the memory of m; 0 by custom")

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return v + delta**2


@dataclass(frozen=True)
class FedAMS(ServerOptimiser[SharedAMS]):
    """FedAdam divided by the largest second moment so far.

    Use it when FedAdam's steps grow too long as v decays: here no denominator ever becomes smaller.
    Beware: one large update shortens all later steps. tau is 0.01 by default, ten times FedAdam's.
    As for FedAdam, the drift of local steps remains.
    """

    eta_g: Rate = hyper(0.03, above(0, schedule=True), "the server's step size")
    beta2: float = hyper(0.99, between(0, 1), "the memory of v")
    tau: float = hyper(0.01, above(0), "the smallest denominator")
    option: str = hyper("max", one_of("max", "amsgrad"), "where the floor stands")
    bias_correction: bool = hyper(False, switch, "divide m and vhat as Adam does; not in the paper")

    def init(self, x: Tensor) -> SharedAMS:
        zero = torch.zeros_like(x)
        return SharedAMS(x, zero, zero, zero, counter(x), counter(x))

    def server(self, shared: SharedAMS, mean: Message, info: RoundInfo) -> SharedAMS:
        x, m, v, vhat, t, r = shared
        r = r + 1
        m = self.beta1 * m + (1 - self.beta1) * mean.delta
        v = self.beta2 * v + (1 - self.beta2) * mean.delta**2
        vhat = torch.maximum(vhat, v)
        if self.option == "max":
            vhat = vhat.clamp(min=self.tau**2)
        first, second = m, vhat
        if self.bias_correction:
            first, second = unbias(m, self.beta1, r), unbias(vhat, self.beta2, r)
        floor = self.tau if self.option == "amsgrad" else 0.0
        t = t + info.steps
        x = x + at(self.eta_g, t) * first / (second.sqrt() + floor)
        return SharedAMS(x, m, v, vhat, t, r)
