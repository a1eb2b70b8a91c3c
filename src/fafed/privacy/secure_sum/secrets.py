"""Secrets of one exchange: agreed by two silos, split among many, encrypted for one."""

from __future__ import annotations

from collections.abc import Mapping

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fafed.privacy.refusal import Refused
from fafed.privacy.secure_sum.messages import digest

HALF = 16  # bytes: the library splits secrets of this size, so ours are split in two halves
ONCE = bytes(12)  # a key of a box encrypts one box, so its nonce may be constant


def derive(secret: bytes, purpose: str, plan: bytes, *names: str) -> bytes:
    """A key for one purpose in one exchange."""
    info = digest(purpose, plan, *(name.encode() for name in names))
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(secret)


def agreed(own: X25519PrivateKey, other: bytes, name: str) -> bytes:
    """The secret of a pair of silos: both compute the same."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of small order gives a secret that everyone knows
        raise Refused(f"{name} has sent a public key that cannot be used") from None


# Shares.


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of a secret of 32 bytes for `count` silos. `threshold` of them give it back."""
    halves = [
        Shamir.split(threshold, count, half, False) for half in (secret[:HALF], secret[HALF:])
    ]
    return [first + second for (_, first), (_, second) in zip(*halves, strict=True)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as the threshold. Keys are the silos' places, from 0."""
    ends = (slice(HALF), slice(HALF, None))
    halves = ([(place + 1, share[end]) for place, share in shares.items()] for end in ends)
    return b"".join(Shamir.combine(half, False) for half in halves)


# Boxes. Both sides derive the key from the secret of their pair, in one direction each.


def seal(pair: bytes, plan: bytes, sender: str, recipient: str, content: bytes) -> bytes:
    key = derive(pair, "box", plan, sender, recipient)
    return ChaCha20Poly1305(key).encrypt(ONCE, content, None)


def unseal(pair: bytes, plan: bytes, sender: str, recipient: str, box: bytes) -> bytes:
    key = derive(pair, "box", plan, sender, recipient)
    try:
        return ChaCha20Poly1305(key).decrypt(ONCE, box, None)
    except InvalidTag:
        raise Refused(f"the shares of {sender} for {recipient} cannot be decrypted") from None
