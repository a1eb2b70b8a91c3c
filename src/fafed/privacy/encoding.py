"""Messages as integers, whose sum does not depend on the order of the summands.

A number is multiplied by its client's weight, divided by the unit of its leaf, and rounded to an
integer. The server adds the integers and multiplies back. All arithmetic on the integers is modulo
2^64 (or 2^32 with `bits = 32`), so masks can be added and removed again without a trace.

The unit of a leaf is 2^-44 of its bound (2^-20 with 32 bits). The bound is a power of two that all
clients know before they answer. For the first exchange it is `first_bound`. After that it is the
smallest power of two that is at least `headroom` times the mean of the clients' largest absolute
values in the last exchange of the same kind. A number beyond the bound is an error on the client,
which is then absent from this exchange. The bound of the next one is larger by `headroom`.

The clients' largest values come in the same sum: each leaf has a second one with a single number.
The mean itself would not do. Near the optimum the clients' updates cancel: their mean is almost
zero, and they are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fafed.core import randomness
from fafed.errors import ConfigError, FafedError

STRETCH = 2**16  # numbers that are encoded at a time; their float64 copy stays in the cache
FRACTION = {64: 44, 32: 20}  # bits -> the bits of a number up to its bound
SILOS = {64: 2**16, 32: 2**10}  # bits -> the most summands. Their sum stays below 2^(bits - 2)
LEAST = -256  # the smallest exponent of a bound: its unit is still a normal number
EXACT = FRACTION[64]  # the exponent of the bound at which the unit is one, with 64 bits


class BeyondBound(FafedError):
    """A client's number is too large to be encoded. The client is absent from this exchange."""

    def __init__(self, leaf: str, value: float, bound: float) -> None:
        super().__init__(f"leaf {leaf} is {value:.2g}, beyond the bound {bound:.2g}")
        self.leaf = leaf


@dataclass(frozen=True)
class Encoding:
    """How numbers become integers. All members of a federation use the same."""

    bits: int = 64
    headroom: float = 8.0
    first_bound: float = 2.0**10

    def __post_init__(self) -> None:
        if self.bits not in FRACTION:
            raise ConfigError(f"bits must be 64 or 32, got {self.bits!r}")
        if not (math.isfinite(self.headroom) and self.headroom >= 2):
            raise ConfigError(
                f"headroom must be at least 2, got {self.headroom!r}: the bound of a message is "
                "this many times the size of the last messages"
            )
        if not (math.isfinite(self.first_bound) and self.first_bound > 0):
            raise ConfigError(f"first_bound must be > 0, got {self.first_bound!r}")

    @property
    def fraction(self) -> int:
        return FRACTION[self.bits]

    def check_silos(self, count: int) -> None:
        if count > SILOS[self.bits]:
            cure = "" if self.bits == 64 else ": use bits = 64"
            raise ConfigError(
                f"sums of {self.bits} bits hold at most {SILOS[self.bits]} clients, got "
                f"{count}{cure}"
            )

    def unit(self, exponent: int) -> float:
        """The number that the integer 1 stands for, if the bound is 2^exponent."""
        return math.ldexp(1.0, exponent - self.fraction)

    def exponent(self, largest: float) -> int:
        """The bound's exponent, if the clients' largest values are this large on average."""
        return max(LEAST, exponent_of(self.headroom * largest))

    def encode(
        self, name: str, values: Tensor, weight: float, exponent: int, key: int = 0
    ) -> Tensor:
        """The integers of one client's leaf, as a flat int64 tensor."""
        flat = values.detach().reshape(1, -1)
        self.check(name, largest_values(flat)[0], exponent)
        total = torch.zeros(flat.shape[1], dtype=torch.int64, device=flat.device)
        weights = torch.tensor([weight], dtype=torch.float64, device=flat.device)
        keys = randomness.tensor(np.asarray([key]).astype(np.uint64)).to(flat.device)
        self.add(total, flat, weights, exponent, keys)
        return total

    def check(self, name: str, largest: float, exponent: int) -> None:
        """Refuse a leaf whose largest absolute value is this."""
        if not math.isfinite(largest):
            raise FafedError(f"leaf {name} is not finite")
        if largest > math.ldexp(1.0, exponent):
            raise BeyondBound(name, largest, math.ldexp(1.0, exponent))

    def add(
        self, total: Tensor, rows: Tensor, weights: Tensor, exponent: int, keys: Tensor
    ) -> None:
        """Add the integers of some clients' leaf, one client per row, to a vector of int64, or of
        int32 modulo 2^32.

        Weights are at most 1. `keys`, one for each client, decide the stochastic rounding with 32
        bits. They are a function of (seed, client, round). With 64 bits numbers are rounded to the
        nearest integer.
        """
        factors = weights * math.ldexp(1.0, self.fraction - exponent)  # a power of two: exact
        width = max(1, STRETCH // max(1, len(rows)))
        for start in range(0, rows.shape[1], width):
            scaled = rows[:, start : start + width] * factors[:, None]  # in float64
            if self.bits == 64:
                whole = scaled.round_()
            else:
                places = torch.arange(start, start + scaled.shape[1], device=rows.device)
                whole = scaled.add_(randomness.uniform_at(keys[:, None], places)).floor_()
            integers = whole.to(torch.int64)
            summed = integers[0] if len(rows) == 1 else integers.sum(0)
            total[start : start + width] += summed.to(total)  # its type and its device

    def decode(self, total: Tensor, exponent: int, weight: float, like: Tensor) -> Tensor:
        """The mean from the sum of the integers, in the shape and type of `like`. `weight` is the
        sum of the clients' weights."""
        found = torch.empty(like.shape, dtype=like.dtype, device=total.device)
        for integers, part in zip(
            torch.split(total, STRETCH), torch.split(found.view(-1), STRETCH), strict=True
        ):
            mean = self.signed(integers).to(torch.float64).mul_(self.unit(exponent)).div_(weight)
            part.copy_(mean if like.is_floating_point() else mean.round_())
        return found

    def signed(self, total: Tensor) -> Tensor:
        """The sum, which is known modulo 2^bits, as a signed number. int64 already is one."""
        if self.bits == 64:
            return total
        half = 1 << (self.bits - 1)
        return (total + half).bitwise_and((1 << self.bits) - 1) - half


def largest_values(rows: Tensor) -> list[float]:
    """The largest absolute value in each row; NaN if there is one."""
    if not rows.shape[1]:
        return [0.0] * len(rows)
    rows = rows.detach()
    low, high = rows.amin(1), rows.amax(1)  # aminmax takes 15 times as long on the CPU
    return torch.maximum(low.double().abs(), high.double().abs()).tolist()


def exponent_of(value: float) -> int:
    """The smallest e with 2^e >= value > 0."""
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 else exponent


def scaled_weights(weights: Sequence[float]) -> list[float]:
    """The weights divided by the smallest power of two that is at least the largest weight."""
    scale = math.ldexp(1.0, exponent_of(max(weights)))
    return [weight / scale for weight in weights]


class Bounds:
    """The exponents of the bounds, leaf by leaf, as the server and every client know them."""

    def __init__(self, encoding: Encoding, known: Mapping[str, int] | None = None) -> None:
        self.encoding = encoding
        self.known = dict(known or {})

    def exponent(self, leaf: str, start: float = 0.0) -> int:
        """The exponent for a leaf. `start` is how large the broadcast values of the leaf are, if
        they were broadcast: buffers begin at the values of the server's model."""
        if leaf in self.known:
            return self.known[leaf]
        first = exponent_of(self.encoding.first_bound)
        return max(first, self.encoding.exponent(start)) if start > 0 else first

    def settle(self, leaf: str, largest: float) -> None:
        """After an exchange, with the mean of the clients' largest values. A leaf of zeros keeps
        its bound."""
        if largest > 0:
            self.known[leaf] = self.encoding.exponent(largest)

    def grow(self, leaf: str, exponent: int) -> None:
        """After an exchange in which a client was beyond the bound 2^exponent."""
        self.known[leaf] = exponent + exponent_of(self.encoding.headroom)

    def copy(self) -> Bounds:
        return Bounds(self.encoding, self.known)
