"""A second moment that clients share: what travels of it, and what the server keeps beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fafed.algorithms._wire import CompactWire, Seen, mean_direction, seen
from fafed.core.hyper import hyper, one_of, sizes
from fafed.core.schedules import Rate, along


class Shared(NamedTuple):
    x: Tensor
    v: Tensor  # mean of the clients' second moments; block: one number for each tensor
    d: Tensor  # mean direction of the last round; compact: empty
    t: Tensor  # steps made


class Message(NamedTuple):
    delta: Tensor
    v: Tensor


def v_wire(default: str) -> str:
    """The hyper-parameter of that name."""
    return hyper(
        default,
        one_of("block", "full"),
        "what travels of v: its mean over each parameter tensor, or all of it",
    )


def v_blocks() -> tuple[int, ...]:
    """The hyper-parameter `blocks`."""
    return hyper((), sizes, "block: sizes of the parameter tensors; filled in from the model")


class SharedSecondMoment(CompactWire[Shared, Shared, Seen, Message]):
    """An algorithm with these two hyper-parameters."""

    eta: Rate
    v_wire: str
    blocks: tuple[int, ...]

    @property
    def squares(self) -> tuple[str, ...]:
        return ("v",)

    def join(self, x: Tensor) -> Seen:
        return seen(x, 1.0, compact=self.compact)

    def bind_model(self, shapes: Sequence[Sequence[int]]) -> Self:
        if self.v_wire == "block" and not self.blocks:
            return replace(self, blocks=tuple(math.prod(shape) for shape in shapes))
        return self

    def sent(self, v: Tensor) -> Tensor:
        """What travels of v. Without a known model, x is one block."""
        if self.v_wire == "full":
            return v
        return torch.stack([part.mean() for part in torch.split(v, self._sizes(v))])

    def received(self, v: Tensor, x: Tensor) -> Tensor:
        """The second moment of each number of x."""
        if self.v_wire == "full":
            return v
        parts = zip(v.unbind(), self._sizes(x), strict=True)
        return torch.cat([mean.expand(n) for mean, n in parts])

    def _sizes(self, x: Tensor) -> list[int]:
        return list(self.blocks or (len(x),))

    def direction(self, shared: Shared, delta: Tensor, steps: int) -> Tensor:
        """D after the round; compact: empty."""
        return shared.d if self.compact else mean_direction(delta, along(self.eta, shared.t, steps))
