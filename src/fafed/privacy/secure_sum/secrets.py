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


def private_key(seed: bytes, plan: bytes) -> X25519PrivateKey:
    """The key of the pair masks, from a seed that is short enough for one set of shares."""
    return X25519PrivateKey.from_private_bytes(derive(seed, "mask key", plan))


def split(seed: bytes, threshold: int, count: int) -> dict[int, bytes]:
    """Shares of a seed, by the silos' points 1 to `count`. `threshold` of them give it back."""
    return dict(Shamir.split(threshold, count, seed, False))


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The seed, from as many shares as the threshold, by their points."""
    return Shamir.combine(list(shares.items()), False)


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
