"""Masks: streams of ChaCha20, added to a message and removed from a sum.

A mask has one stream for each leaf of the message. Its numbers are uniform in Z_2^64, or in Z_2^32.
They are made a stretch at a time, so a mask never is in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

Ring: TypeAlias = "NDArray[np.uint64] | NDArray[np.uint32]"
DTYPES: dict[int, np.dtype[Any]] = {64: np.dtype("<u8"), 32: np.dtype("<u4")}
STRETCH = 2**14  # numbers: a stretch of the message stays in the cache for all of its masks

SignedKeys = Sequence[tuple[int, bytes]]  # +1 or -1, and the key of a mask


def apply(vector: Ring, lengths: Sequence[int], masks: SignedKeys) -> None:
    """Add these masks (+1) or subtract them (-1), in place. `lengths` are those of the leaves."""
    assert sum(lengths) == len(vector), "the leaves fill the vector"
    zeros, buffer = np.zeros(STRETCH, vector.dtype), np.empty(STRETCH, vector.dtype)
    start = 0
    for leaf, length in enumerate(lengths):
        streams = [(sign, _stream(key, leaf)) for sign, key in masks]
        for at in range(start, start + length, STRETCH):
            part = vector[at : min(at + STRETCH, start + length)]
            mask = buffer[: len(part)]
            for sign, stream in streams:
                stream.update_into(_as_bytes(zeros[: len(part)]), _as_bytes(mask))
                if sign > 0:
                    part += mask  # modulo 2^bits: NumPy's unsigned integers wrap
                else:
                    part -= mask
        start += length


def _stream(key: bytes, leaf: int):  # type: ignore[no-untyped-def]
    """The key stream of one leaf. The block counter has the first 8 bytes, the leaf the others."""
    nonce = bytes(8) + leaf.to_bytes(8, "little")
    return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()


def _as_bytes(array: Ring) -> memoryview:
    return memoryview(array).cast("B")  # type: ignore[arg-type]
