"""Random numbers of a real silo: nobody can guess them, and they are never the same again.

They come from ChaCha20 (package cryptography) with a key from the operating system. A key is for
one visit, and is in memory alone. A key that was kept could be used twice: after a backup was
restored, or when a server asks for the same round with another model. The difference of the two
answers would then have no noise.
"""

from __future__ import annotations

import hmac
import math
import os

import numpy as np
from numpy.typing import NDArray

from fafed.core.extras import require

Floats = NDArray[np.float64]
KEY_BYTES = 32


class Secret:
    """A key, and the numbers that it gives for each purpose."""

    def __init__(self, key: bytes | None = None) -> None:
        """key: for tests. None: a fresh one from the operating system."""
        require("differential privacy", "privacy", "cryptography")
        self._key = os.urandom(KEY_BYTES) if key is None else key

    def stream(self, purpose: str) -> Stream:
        """Use each purpose once: the numbers are a function of it and the key."""
        return Stream(hmac.digest(self._key, purpose.encode(), "sha256"))

    def uniform(self, purpose: str, count: int) -> Floats:
        return self.stream(purpose).random(count)


class Stream:
    """An endless row of random numbers."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        # a key is for one stream, so the nonce may be zero
        self._bytes = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def random(self, count: int) -> Floats:
        """The next numbers, uniform in [0, 1)."""
        words = np.frombuffer(self._bytes.update(bytes(8 * count)), "<u8")
        return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def standard_normal(self, count: int) -> Floats:
        """The next numbers, normal with mean 0 and variance 1 (Box and Muller)."""
        half = (count + 1) // 2
        length = np.sqrt(-2 * np.log1p(-self.random(half)))
        angle = 2 * math.pi * self.random(half)
        return np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:count]
