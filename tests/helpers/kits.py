"""Startup kits as `nvflare provision` makes them, as far as fafed looks into them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_kit(kit: Path, days: float = 360, member: str = "client") -> Path:
    """A member's kit, a silo's by default, with certificates that end after so many days."""
    (kit / "local").mkdir(parents=True)
    (kit / "startup").mkdir()
    (kit / "local" / "resources.json.default").write_text(json.dumps({member: {}}))
    (kit / "local" / "authorization.json.default").write_text(json.dumps({"permissions": {}}))
    for file, name in {"client.crt": kit.name, "rootCA.pem": "fafed"}.items():
        (kit / "startup" / file).write_bytes(certificate(name, days))
    (kit / "startup" / "start.sh").write_text("echo started\n")
    return kit


def certificate(name: str, days: float) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    end = datetime.now(UTC) + timedelta(days=days, hours=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(end - timedelta(days=1000))
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)
