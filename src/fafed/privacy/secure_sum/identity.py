"""Who a silo is: it signs with the private key of its certificate.

A project's authority (CA) has issued the certificates. Without one, the public keys of all silos
are pinned: each silo has them in its own file. RSA, ECDSA and Ed25519 keys can be used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import NameOID

from fafed.errors import ConfigError
from fafed.privacy.refusal import Refused

PrivateKey: TypeAlias = "rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey"
PublicKey: TypeAlias = "rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey"
PRIVATE = (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey, ed25519.Ed25519PrivateKey)
PUBLIC = (rsa.RSAPublicKey, ec.EllipticCurvePublicKey, ed25519.Ed25519PublicKey)
RSA_BITS = 2048  # the shortest RSA key that is accepted
_SHA256 = hashes.SHA256()
_PSS = padding.PSS(padding.MGF1(_SHA256), padding.PSS.DIGEST_LENGTH)


class Identity:
    """A silo's name, its private key and its certificate."""

    def __init__(self, name: str, key: PrivateKey, certificate: bytes = b"") -> None:
        """certificate: as DER; empty if the other silos have pinned the key."""
        self.name = name
        self._key = key
        self.certificate = certificate

    @classmethod
    def from_pem(cls, name: str, key: bytes, certificate: bytes = b"") -> Identity:
        """From the content of PEM files. The key may also be one of `ssh-keygen`."""
        ours = b"OPENSSH PRIVATE KEY" in key
        load = serialization.load_ssh_private_key if ours else serialization.load_pem_private_key
        try:
            found = load(key, None)
            own = x509.load_pem_x509_certificate(certificate) if certificate else None
        except (ValueError, TypeError) as cause:
            raise ConfigError(f"the key or certificate of {name} cannot be read: {cause}") from None
        if not isinstance(found, PRIVATE):
            raise ConfigError(f"{name} has a {type(found).__name__}: use RSA, ECDSA or Ed25519")
        der = own.public_bytes(serialization.Encoding.DER) if own else b""
        return cls(name, found, der)

    def sign(self, data: bytes) -> bytes:
        key = self._key
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(data, _PSS, _SHA256)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key.sign(data, ec.ECDSA(_SHA256))
        return key.sign(data)


class Trust(ABC):
    """What a silo knows about the others."""

    @abstractmethod
    def public_key(self, name: str, certificate: bytes) -> PublicKey:
        """The key that belongs to this name, or `Refused`."""


class Pinned(Trust):
    """The public keys of all silos, from this silo's own file."""

    def __init__(self, keys: Mapping[str, PublicKey]) -> None:
        self.keys = dict(keys)

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Pinned:
        """From lines as `ssh-keygen -y -f KEY` prints them."""
        found: dict[str, PublicKey] = {}
        for name, text in texts.items():
            try:
                key = serialization.load_ssh_public_key(text.encode())
            except (ValueError, UnsupportedAlgorithm) as cause:
                raise ConfigError(
                    f"the public key of {name} cannot be read ({cause}): give the line that "
                    "`ssh-keygen -y -f KEY` prints"
                ) from None
            if not isinstance(key, PUBLIC):
                raise ConfigError(f"{name} has a {type(key).__name__}: use RSA, ECDSA or Ed25519")
            found[name] = key
        return cls(found)

    def public_key(self, name: str, certificate: bytes) -> PublicKey:
        if name not in self.keys:
            raise Refused(f"{name} has no key here: add it to this silo's file, or leave it out")
        return self.keys[name]


class ProjectCA(Trust):
    """The authority that has issued the silos' certificates."""

    def __init__(self, certificate: bytes) -> None:
        """certificate: the content of a PEM file."""
        try:
            self.root = x509.load_pem_x509_certificate(certificate)
        except ValueError as cause:
            raise ConfigError(f"the project's root certificate cannot be read: {cause}") from None
        self._issued: dict[bytes, x509.Certificate] = {}  # certificates with a right signature

    def public_key(self, name: str, certificate: bytes) -> PublicKey:
        try:
            found = self._certificate(certificate)
        except (ValueError, TypeError, InvalidSignature):
            raise Refused(f"{name} has no certificate of this project's authority") from None
        now = datetime.now(UTC)
        for owner, one in ((name, found), ("the authority", self.root)):
            begins, ends = one.not_valid_before_utc, one.not_valid_after_utc
            if not begins <= now <= ends:
                first, last, today = (f"{at:%Y-%m-%d %H:%M}" for at in (begins, ends, now))
                raise Refused(
                    f"the certificate of {owner} is not valid now: it is from {first} to {last}, "
                    f"and this machine's clock says {today} (UTC): renew the certificate, or set "
                    "the clock"
                )
        names = [a.value for a in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        if names != [name]:
            raise Refused(f"{name} shows the certificate of {', '.join(map(str, names)) or '?'}")
        key = found.public_key()
        if not isinstance(key, PUBLIC):
            raise Refused(f"{name} has a {type(key).__name__}: use RSA, ECDSA or Ed25519")
        return key

    def _certificate(self, data: bytes) -> x509.Certificate:
        """It is the same in every round: the authority's signature on it is checked once."""
        if data not in self._issued:
            found = x509.load_der_x509_certificate(data)
            found.verify_directly_issued_by(self.root)
            self._issued[data] = found
        return self._issued[data]


def verify(name: str, key: PublicKey, signature: bytes, data: bytes, what: str) -> None:
    """Refuse a wrong signature of the silo with this name."""
    try:
        if isinstance(key, rsa.RSAPublicKey):
            if key.key_size < RSA_BITS:
                raise Refused(f"{name} has an RSA key of {key.key_size} bits: use {RSA_BITS}")
            key.verify(signature, data, _PSS, _SHA256)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, data, ec.ECDSA(_SHA256))
        else:
            key.verify(signature, data)
    except InvalidSignature:
        raise Refused(f"{what} of {name} has a wrong signature") from None
