"""FedCAMS (Wang et al., ICML 2022, https://arxiv.org/abs/2205.02719): FedAMS with compressed
messages and error feedback.

    s = D_i + e_i;   send C(s);   e_i <- s - C(s)          D_i: FedAvg's q local steps
    D = mean_i C(s_i), then the server of FedAMS

    sign       C(s) = (|s|_1 / d) sign(s), sign(0) = 1     d bits and one number
    topk       the k largest |s_j|, lower j first          k numbers and their places
    identity   C(s) = s: FedAMS

C acts on the whole flat vector. Bytes up are counted after compression. What the server sends down
is not compressed. FedAMS's functions do the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fafed.algorithms.fedopt import Down, FedAMS, Message, SharedAMS
from fafed.core.algorithm import Algorithm, RoundInfo
from fafed.core.batch import Batches
from fafed.core.codes import Code, Signs, TopK, largest
from fafed.core.gradient import Grad
from fafed.core.hyper import Rule, above, between, hyper, one_of, switch
from fafed.core.schedules import Rate


class Local(NamedTuple):
    e: Tensor  # what compression has left out so far


@dataclass(frozen=True)
class FedCAMS(Algorithm[SharedAMS, Down, Local, Message]):
    """FedAMS with compressed messages. What compression leaves out is sent later.

    Use it when bytes up are the bottleneck: one bit per number by default, fewer with topk.
    Beware: bytes down are not compressed. Each client keeps a vector with what it has not sent yet.
    An absent client cannot send it.
    """

    eta: Rate = hyper(0.1, above(0, schedule=True), "the local step size")
    eta_g: Rate = hyper(0.03, above(0, schedule=True), "the server's step size")
    beta1: float = hyper(0.9, between(0, 1), "the memory of m")
    beta2: float = hyper(0.99, between(0, 1), "the memory of v")
    tau: float = hyper(0.01, above(0), "the smallest denominator")
    option: str = hyper("max", one_of("max", "amsgrad"), "where the floor stands")
    bias_correction: bool = hyper(False, switch, "divide m and vhat as Adam does; not in the paper")
    compressor: str = hyper("sign", one_of("sign", "topk", "identity"), "what a client sends")
    fraction: float = hyper(
        1 / 64,
        Rule("a number in (0, 1]", lambda v: between(0, 1).allows(v) and v > 0),
        "topk: the share of the coordinates that is sent, k/d",
    )

    @cached_property
    def fedams(self) -> FedAMS:
        return FedAMS(
            eta=self.eta,
            eta_g=self.eta_g,
            beta1=self.beta1,
            beta2=self.beta2,
            tau=self.tau,
            option=self.option,
            bias_correction=self.bias_correction,
        )

    def init(self, x: Tensor) -> SharedAMS:
        return self.fedams.init(x)

    def join(self, x: Tensor) -> Local:
        return Local(torch.zeros_like(x))

    def send(self, shared: SharedAMS) -> Down:
        return self.fedams.send(shared)

    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        _, found = self.fedams.local(grad, down, (), batches)
        s = found.delta + local.e
        sent = self.compressed(s)
        return Local(s - sent), Message(sent)

    def server(self, shared: SharedAMS, mean: Message, info: RoundInfo) -> SharedAMS:
        return self.fedams.server(shared, mean, info)

    # The compressors.

    def compressed(self, s: Tensor) -> Tensor:
        match self.compressor:
            case "sign":
                size = s.abs().mean()
                return torch.where(s >= 0, size, -size)
            case "topk":
                k = TopK(self.fraction).count(len(s))
                return torch.where(largest(s[None], k)[0], s, 0.0)
            case _:
                return s

    @property
    def coded(self) -> Mapping[str, Code]:
        match self.compressor:
            case "sign":
                return {"delta": Signs()}
            case "topk":
                return {"delta": TopK(self.fraction, exact=True)}
            case _:
                return {}
