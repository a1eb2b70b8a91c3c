"""Local steps of AdamW."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fafed.core.hyper import above, at_least, fraction, hyper


class Moments(NamedTuple):
    m: Tensor
    v: Tensor


class AdamW(NamedTuple):
    """The settings of a step."""

    beta1: float
    beta2: float
    eps: float
    decay: float

    def moments(self, old: Moments, g: Tensor) -> Moments:
        m = self.beta1 * old.m + (1 - self.beta1) * g
        v = self.beta2 * old.v + (1 - self.beta2) * g**2
        return Moments(m, v)

    def direction(
        self, y: Tensor, moments: Moments, first: int | Tensor, second: int | Tensor
    ) -> Tensor:
        """mhat / (sqrt(vhat) + eps) + decay y. `first` and `second` count the gradients in m, v."""
        m, v = unbiased(moments.m, self.beta1, first), unbiased(moments.v, self.beta2, second)
        move = m / (v.sqrt() + self.eps)
        return move + self.decay * y if self.decay else move


def unbiased(moment: Tensor, beta: float, count: int | Tensor) -> Tensor:
    """A moment that started at 0, divided by 1 - beta^count."""
    if isinstance(count, Tensor):  # each client may have a count of its own
        return moment / (1 - beta ** count.double()).to(moment.dtype)
    return moment / (1 - beta**count)


# Hyper-parameters.


def memory(default: float, of: str) -> float:
    return hyper(default, fraction, f"the memory of {of}")


def floor(default: float = 1e-8) -> float:
    return hyper(default, above(0), "the smallest denominator")


def decoupled_decay(default: float) -> float:
    return hyper(default, at_least(0), "decoupled weight decay: a step adds -eta decay y")
