"""Silos with certificates of a made-up project, and a server that passes their messages on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from fafed.privacy.secure_sum import messages, silo
from fafed.privacy.secure_sum.identity import Identity, ProjectCA
from fafed.privacy.secure_sum.messages import Context
from fafed.privacy.secure_sum.server import Server, Sum

MAKERS = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "ecdsa": lambda: ec.generate_private_key(ec.SECP256R1()),
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
}
NOW = datetime.now(UTC)
PEM = serialization.Encoding.PEM


class Project:
    """An authority that issues certificates, as a FLARE project has it."""

    def __init__(self, kind="ed25519"):
        self.kind = kind
        self.key = MAKERS[kind]()
        self.root = self._certificate("project", self.key)
        self.trust = ProjectCA(self.root.public_bytes(PEM))

    def identity(self, name, *, subject=None, days=(-1, 30), kind=None):
        key = MAKERS[kind or self.kind]()
        certificate = self._certificate(subject or name, key, days)
        pem = key.private_bytes(
            PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Identity.from_pem(name, pem, certificate.public_bytes(PEM))

    def _certificate(self, name, key, days=(-1, 30)):
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "project")])
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW + timedelta(days=days[0]))
            .not_valid_after(NOW + timedelta(days=days[1]))
        )
        hashed = None if self.kind == "ed25519" else hashes.SHA256()
        return builder.sign(self.key, hashed)


@cache
def project():
    return Project()


@cache
def identity(name):
    return project().identity(name)


def names(count):
    return [f"site-{i:03d}" for i in range(count)]


def silos(count, **options):
    members = names(count)
    return {
        name: silo.Silo(identity(name), project().trust, members, **options) for name in members
    }


def context(**changes):
    return Context("run", 3, 0, 0)._replace(**changes)


def vectors(count, size=5, seed=0, dtype=np.uint64):
    r = np.random.default_rng(seed)
    return {name: r.integers(0, 2**63, size).astype(dtype) for name in names(count)}


def answer(own, request, vector, lengths):
    """A silo's answer to a request."""
    kind = type(request).__name__
    if kind == "Plan":
        return own.keys(request)
    if kind == "KeyList":
        return own.shares(request)
    if kind == "Inbox":
        return own.masked(request, vector.copy(), lengths)
    if kind == "Answered":
        return own.agree(request)
    return own.unmask(request)


def exchange(members, server, data, *, drop=None, lie=None, wire=True, seen=None, before_step=None):
    """The sum, over a wire of bytes. `drop`: step -> names that do not answer from there on. `lie`:
    a function of (step, name, request) that gives another request. `seen` gets all answers."""
    gone = set()
    requests = server.begin()
    while not isinstance(requests, Sum):
        step = server.step
        if before_step:
            before_step(step)
        gone |= set((drop or {}).get(step, ()))
        answers = {}
        for name, request in requests.items():
            if name in gone:
                continue
            if lie:
                request = lie(step, name, request)
            request = sent(request) if wire else request
            found = answer(members[name], request, data[name], server.lengths)
            answers[name] = sent(found) if wire else found
            if seen is not None:
                seen.append((step, name, messages.write(found)))
        requests = server.receive(answers)
    return requests


def sent(message):
    return messages.read(type(message), messages.write(message))


def make_server(count, lengths=(5,), **options):
    return Server(
        options.pop("context", context()),
        names(count),
        lengths,
        trust=project().trust,
        **options,
    )


def due(data, who):
    with np.errstate(over="ignore"):
        return sum((data[name] for name in who), np.zeros_like(data[who[0]]))
