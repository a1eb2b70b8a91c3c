"""Shamir's secret sharing, for many secrets at once.

A secret is the constant term of a polynomial with random coefficients; a share is its value at a
silo's point. Numbers are elements of GF(2^128) with x^128 + x^7 + x^2 + x + 1, so the shares are
those of PyCryptodome's `Shamir`. A secret of 32 bytes is two elements.

All elements at hand lie side by side in one integer, each in a lane of 256 bits. Points are public,
and a product with a public factor is shifts and exclusive ors of the whole integer. So no step
branches on a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

BITS, LANE = 128, 32  # bits of an element, and bytes of its lane
BYTES = BITS // 8
ALL = (1 << BITS) - 1
MODULUS = (1 << BITS) | 0b10000111
MOST = 2**32  # points are below it


def split(secrets: Sequence[bytes], threshold: int, points: Sequence[int]) -> list[list[bytes]]:
    """For each point the shares of these secrets, which have 16 bytes or a multiple of them.
    `threshold` of the shares give a secret back, fewer say nothing."""
    assert 1 <= threshold <= len(points) == len(set(points)), "a share for each silo"
    assert all(0 < point < MOST for point in points), "the secret is at point 0"
    lanes = sum(len(secret) for secret in secrets) // BYTES
    constant = _spread(b"".join(secrets))
    coefficients = [_spread(os.urandom(lanes * BYTES)) for _ in range(threshold - 1)]
    ends = [len(secret) for secret in secrets]
    found = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = _times(value, point, lanes) ^ coefficient
        value = _times(value, point, lanes) ^ constant
        found.append(_cut(_gathered(value, lanes), ends))
    return found


def combine(shares: Mapping[int, Sequence[bytes]]) -> list[bytes]:
    """The secrets, from as many shares of each as the threshold. Keys are the points."""
    first, *others = shares.values()
    ends = [len(share) for share in first]
    assert all([len(share) for share in other] == ends for other in others), "shares fit"
    lanes = sum(ends) // BYTES
    total = 0
    for factor, own in zip(_factors(tuple(shares)), shares.values(), strict=True):
        total ^= _product(_spread(b"".join(own)), factor)
    return _cut(_gathered(_reduced(total, lanes), lanes), ends)


@lru_cache(maxsize=8)
def _factors(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's factors at 0: x_m / (x_j + x_m), over all m but j."""
    assert len(points) == len(set(points)), "a share for each point"
    assert all(0 < point < MOST for point in points), "the secret is at point 0"
    high, low = [], []
    for own in points:
        above = below = 1
        for other in points:
            if other != own:
                above, below = _times(above, other, 1), _times(below, own ^ other, 1)
        high.append(above)
        low.append(below)
    return tuple(_one(a, b) for a, b in zip(high, _inverses(low), strict=True))


def _inverses(numbers: Sequence[int]) -> list[int]:
    """1 / a for each. One inversion of their product is enough for all."""
    products = [1]
    for a in numbers:
        products.append(_one(products[-1], a))
    rest, found = _inverse(products.pop()), []
    for a, before in zip(reversed(numbers), reversed(products), strict=True):
        found.append(_one(rest, before))
        rest = _one(rest, a)
    return found[::-1]


def _inverse(a: int) -> int:
    """a^(2^128 - 2)."""
    result, power = 1, a
    for _ in range(BITS - 1):
        power = _one(power, power)
        result = _one(result, power)
    return result


# Arithmetic in all lanes at once. The second factor is public.


def _one(a: int, b: int) -> int:
    return _reduced(_product(a, b), 1)


def _times(value: int, point: int, lanes: int) -> int:
    return _reduced(_product(value, point), lanes)


def _product(value: int, factor: int) -> int:
    """Without reduction: at most 255 bits, so a lane holds it."""
    found = 0
    while factor:
        lowest = factor & -factor
        found ^= value << (lowest.bit_length() - 1)
        factor ^= lowest
    return found


def _reduced(value: int, lanes: int) -> int:
    low = _low(lanes)
    for _ in range(2):  # the second time removes the 7 bits that the first one left
        high = (value >> BITS) & low
        value = (value & low) ^ high ^ (high << 1) ^ (high << 2) ^ (high << 7)
    return value


@lru_cache(maxsize=8)
def _low(lanes: int) -> int:
    """The lower half of every lane."""
    return int.from_bytes((b"\xff" * BYTES + bytes(LANE - BYTES)) * lanes, "little")


def _spread(data: bytes) -> int:
    """Elements, 16 bytes each with the highest first, in lanes."""
    parts = (data[at : at + BYTES][::-1] for at in range(0, len(data), BYTES))
    pad = bytes(LANE - BYTES)
    return int.from_bytes(b"".join(part + pad for part in parts), "little")


def _gathered(value: int, lanes: int) -> bytes:
    data = value.to_bytes(lanes * LANE, "little")
    return b"".join(data[at : at + BYTES][::-1] for at in range(0, len(data), LANE))


def _cut(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    found, at = [], 0
    for length in lengths:
        found.append(data[at : at + length])
        at += length
    return found
