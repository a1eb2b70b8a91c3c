"""How the numbers of a vector become fewer bytes, and back.

A code turns rows of numbers, one row for each client, into parts: a few vectors of fixed types. The
sizes of the parts follow from the length of the row alone. So a receiver knows what must come, and
refuses anything else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fafed.core import randomness

STRETCH = 2**18  # numbers that are rounded at a time, so that they stay in the cache
BLOCK = 2**16  # places within a block need two bytes
LEVELS = 127  # of an integer of eight bits, on each side of zero

Parts: TypeAlias = "dict[str, Tensor]"  # the first dimension of each runs over the clients


class Part(NamedTuple):
    """One vector of a client's message, as it is sent."""

    size: int
    dtype: torch.dtype


class Code(ABC):
    """How a vector is sent."""

    @abstractmethod
    def parts(self, size: int, dtype: torch.dtype) -> dict[str, Part]:
        """What is sent of a vector of this size. The name "" is the vector's own."""

    @abstractmethod
    def encode(self, rows: Tensor, keys: Tensor) -> Parts:
        """The parts of these rows. `keys`, one for each row, decide what is random."""

    @abstractmethod
    def decode(self, parts: Parts, size: int, dtype: torch.dtype) -> Tensor:
        """The rows. Raises ValueError if no encoder can have made the parts."""

    def nbytes(self, size: int, dtype: torch.dtype) -> int:
        """The bytes of a vector of this size."""
        parts = self.parts(size, dtype).values()
        return sum(part.size * part.dtype.itemsize for part in parts)


@dataclass(frozen=True)
class Exact(Code):
    """The numbers themselves."""

    def parts(self, size: int, dtype: torch.dtype) -> dict[str, Part]:
        return {"": Part(size, dtype)}

    def encode(self, rows: Tensor, keys: Tensor) -> Parts:
        return {"": rows}

    def decode(self, parts: Parts, size: int, dtype: torch.dtype) -> Tensor:
        return parts[""]


@dataclass(frozen=True)
class BFloat16(Code):
    """Two bytes for each number: the exponent of float32, and eight bits of precision."""

    def parts(self, size: int, dtype: torch.dtype) -> dict[str, Part]:
        return {"": Part(size, torch.bfloat16)}

    def encode(self, rows: Tensor, keys: Tensor) -> Parts:
        return {"": rows.to(torch.bfloat16)}

    def decode(self, parts: Parts, size: int, dtype: torch.dtype) -> Tensor:
        return parts[""].to(dtype)


@dataclass(frozen=True)
class Int8(Code):
    """One byte for each number: an integer from -127 to 127, times a scale that all clients share.

    The integer is one of the two next to the number, at random, so that the mean over many draws is
    the number itself. A number beyond 127 scales becomes 127 scales.
    """

    scale: float

    def parts(self, size: int, dtype: torch.dtype) -> dict[str, Part]:
        return {"": Part(size, torch.int8)}

    def encode(self, rows: Tensor, keys: Tensor) -> Parts:
        whole = torch.empty(rows.shape, dtype=torch.int8, device=rows.device)
        width = max(1, STRETCH // max(1, len(rows)))
        for start in range(0, rows.shape[1], width):
            part = rows[:, start : start + width].to(torch.float64) / self.scale
            places = torch.arange(start, start + part.shape[1], device=rows.device)
            part += randomness.uniform_at(keys[:, None], places)
            whole[:, start : start + width] = part.floor_().clamp_(-LEVELS, LEVELS).to(torch.int8)
        return {"": whole}

    def decode(self, parts: Parts, size: int, dtype: torch.dtype) -> Tensor:
        return (parts[""].to(torch.float64) * self.scale).to(dtype)


@dataclass(frozen=True)
class Powers(Code):
    """One byte for each number, which is not negative: 0, or a power of 2^(1/4)."""

    def parts(self, size: int, dtype: torch.dtype) -> dict[str, Part]:
        return {"": Part(size, torch.uint8)}

    def encode(self, rows: Tensor, keys: Tensor) -> Parts:
        return {"": to_powers(rows)}

    def decode(self, parts: Parts, size: int, dtype: torch.dtype) -> Tensor:
        return from_powers(parts[""], dtype)


@dataclass(frozen=True)
class Signs(Code):
    """One bit for each number, which is +s or -s, and one number s."""

    def parts(self, size: int, dtype: torch.dtype) -> dict[str, Part]:
        return {"signs": Part(-(-size // 8), torch.uint8), "size": Part(1, dtype)}

    def encode(self, rows: Tensor, keys: Tensor) -> Parts:
        return {"signs": _packed(rows > 0), "size": rows[:, :1].abs()}

    def decode(self, parts: Parts, size: int, dtype: torch.dtype) -> Tensor:
        own = parts["size"]
        return torch.where(_unpacked(parts["signs"], size), own, -own)


@dataclass(frozen=True)
class TopK(Code):
    """The numbers with the largest absolute values, and their places. Of equal ones, the first.

    A place takes two bytes, within blocks of 65536 places. If a bit for every place of the vector
    is shorter, that is sent instead.
    """

    share: float  # of the numbers
    exact: bool = False  # else in two bytes, as BFloat16

    def count(self, size: int) -> int:
        return min(size, max(1, round(self.share * size)))

    def parts(self, size: int, dtype: torch.dtype) -> dict[str, Part]:
        k, blocks = self.count(size), -(-size // BLOCK)
        values = {"values": Part(k, dtype if self.exact else torch.bfloat16)}
        listed = {"places": Part(k, torch.int16)}
        if blocks > 1:
            listed["counts"] = Part(blocks, torch.int32)
        mask = {"mask": Part(-(-size // 8), torch.uint8)}
        cheaper = min(listed, mask, key=lambda parts: _nbytes(parts))
        return values | cheaper

    def encode(self, rows: Tensor, keys: Tensor) -> Parts:
        n, size = rows.shape
        wanted = self.parts(size, rows.dtype)
        chosen = largest(rows, self.count(size))
        values = rows[chosen].view(n, -1)
        found = {"values": values.to(wanted["values"].dtype)}
        if "mask" in wanted:
            return found | {"mask": _packed(chosen)}
        places = chosen.nonzero()[:, 1].view(n, -1)
        low = (places % BLOCK - BLOCK // 2).to(torch.int16)
        found |= {"places": low}
        if "counts" in wanted:
            blocks = range(wanted["counts"].size)
            counts = [(places // BLOCK == block).sum(1) for block in blocks]
            found["counts"] = torch.stack(counts, 1).to(torch.int32)
        return found

    def decode(self, parts: Parts, size: int, dtype: torch.dtype) -> Tensor:
        values = parts["values"].to(dtype)
        n, k = values.shape
        places = self._places(parts, n, k, size)
        rows = torch.zeros(n, size, dtype=dtype, device=values.device)
        return rows.scatter_(1, places, values)

    def _places(self, parts: Parts, n: int, k: int, size: int) -> Tensor:
        if "mask" in parts:
            chosen = _unpacked(parts["mask"], size)
            if not bool((chosen.sum(1) == k).all()):
                raise ValueError(f"it marks another number of places than {k}")
            return chosen.nonzero()[:, 1].view(n, k)
        places = parts["places"].to(torch.int64) + BLOCK // 2
        if "counts" in parts:
            counts = parts["counts"].to(torch.int64)
            if int(counts.min()) < 0 or not bool((counts.sum(1) == k).all()):
                raise ValueError(f"its blocks do not have {k} places")
            blocks = torch.arange(counts.shape[1], device=counts.device).expand(n, -1)
            places = places + BLOCK * torch.repeat_interleave(
                blocks.reshape(-1), counts.reshape(-1)
            ).view(n, k)
        if int(places.max()) >= size or bool((places[:, 1:] <= places[:, :-1]).any()):
            raise ValueError(f"its places do not rise within {size} numbers")
        return places


def largest(rows: Tensor, k: int) -> Tensor:
    """Which k numbers of each row have the largest absolute values. Of equal ones, the first."""
    height = rows.abs()
    least = height.topk(k, dim=1).values[:, -1:]
    larger, equal = height > least, height == least
    room = k - larger.sum(1, keepdim=True)  # torch's topk picks any of equal numbers
    return larger | (equal & (equal.cumsum(1) <= room))


# Powers of 2^(1/4), from 2^-40 to 2^23.5. Code 0 is the number 0.

LOWEST, HIGHEST = -160, 94


def to_powers(v: Tensor) -> Tensor:
    """The codes of the nearest powers, as uint8. The distance is that of the logarithms."""
    quarters = (4 * v.log2()).round().clamp(LOWEST, HIGHEST)
    return torch.where(v < 2.0 ** (LOWEST / 4), 0, quarters - (LOWEST - 1)).to(torch.uint8)


def from_powers(codes: Tensor, dtype: torch.dtype) -> Tensor:
    return _powers(dtype, codes.device)[codes.long()]


@cache
def _powers(dtype: torch.dtype, device: torch.device) -> Tensor:
    found = [0.0] + [math.exp2(quarter / 4) for quarter in range(LOWEST, HIGHEST + 1)]
    return torch.tensor(found, dtype=torch.float64).to(device, dtype)


def _packed(bits: Tensor) -> Tensor:
    packed = np.packbits(bits.cpu().numpy(), axis=1)
    return torch.from_numpy(packed).to(bits.device)


def _unpacked(packed: Tensor, size: int) -> Tensor:
    bits = np.unpackbits(packed.cpu().numpy(), axis=1)
    if bits[:, size:].any():
        raise ValueError(f"it marks places beyond its {size} numbers")
    return torch.from_numpy(bits[:, :size].astype(bool)).to(packed.device)


def _nbytes(parts: dict[str, Part]) -> int:
    return sum(part.size * part.dtype.itemsize for part in parts.values())
