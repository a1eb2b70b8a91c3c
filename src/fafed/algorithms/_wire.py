"""Which vectors a message holds: all, or only those that a client cannot derive by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fafed.core.algorithm import Algorithm, Down, Local, Message, Shared
from fafed.core.hyper import hyper, one_of

Wire = Literal["compact", "full"]
FULL_CURE = "wire='full'"  # with it, clients may be absent


def wire(about: str) -> Wire:
    """The hyper-parameter of that name."""
    return hyper("compact", one_of("compact", "full"), about)


class CompactWire(Algorithm[Shared, Down, Local, Message]):
    """An algorithm with that hyper-parameter. Its compact wire needs all clients in every round,
    because a client derives the rest from the model of the round before."""

    wire: str

    @property
    def compact(self) -> bool:
        return self.wire == "compact"

    @property
    def requires_all_clients(self) -> bool:
        return self.compact

    @property
    def absence_cure(self) -> str:
        return FULL_CURE


# The mean direction of the last round, which several algorithms add to their local steps:
#     D = -mean_i(y_i - x) / (sum of the step sizes),   so the server's next model is
#     x' = x - eta_g (sum of the step sizes) D
# A client that keeps x and eta_g times the sum, its reach, finds D when it receives x'.


class Seen(NamedTuple):
    """What a client keeps of the last round to derive D; with wire="full" x is empty."""

    x: Tensor  # the model that it received
    reach: Tensor  # eta_g times the sum of the step sizes


def seen(x: Tensor, reach: float | Tensor, *, compact: bool) -> Seen:
    one = torch.ones((), dtype=x.dtype, device=x.device)
    return Seen(x if compact else x[:0], one * reach)


def derived_direction(x: Tensor, seen: Seen) -> Tensor:
    """D, by a client that receives x. In its first round it is 0."""
    return (seen.x - x) / seen.reach


def mean_direction(delta: Tensor, rates: Sequence[float | Tensor]) -> Tensor:
    """D, by the server."""
    return -delta / sum(rates)
