"""The server's side: which silos take part, sending messages, and checking answers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from fafed.errors import ConfigError, FafedError
from fafed.silos import messages, payload
from fafed.silos.audit import Audit
from fafed.silos.messages import HEAD_LIMIT, Content, ExchangeId, Message, Refused, Shapes

log = logging.getLogger("fafed")
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}"  # name of a silo; other programs' files contain it


class TooFew(FafedError):
    """Fewer silos than the run must have."""


class Unfit(TooFew):
    """Silos have said that they cannot take part. Another try would end alike."""


class Transport(Protocol):
    """Carries messages to silos. This is all that a new transport must implement."""

    def present(self) -> Sequence[str]:
        """The silos that can be asked now."""

    def ask(
        self, requests: Mapping[str, Message], seconds: float, limit: int
    ) -> Iterator[tuple[str, Message | None]]:
        """Send each silo its request. Yield the answers as they come, and None for a silo that is
        known to be gone. End when all answers are in or the time is over. An answer that announces
        more than `limit` bytes is not received."""


@dataclass(frozen=True)
class FederationConfig:
    """Which silos take part, and how long a round waits for them."""

    silos: tuple[str, ...]  # in the order of the clients
    min_silos: int
    deadline: float = 3600.0  # seconds for one exchange
    start: float = 300.0  # seconds for the silos to connect and load their data

    def __post_init__(self) -> None:
        if not self.silos or not all(self.silos) or len(set(self.silos)) < len(self.silos):
            raise ConfigError(
                f"the silos are {','.join(self.silos)!r}: name each of them once, as in north,south"
            )
        for silo in self.silos:
            if not re.fullmatch(NAME, silo):
                raise ConfigError(
                    f"the silo's name {silo!r} has other characters than letters, digits, -, _ and "
                    ". or is longer than 63: take another name"
                )
        if not 1 <= self.min_silos <= len(self.silos):
            raise ConfigError(
                f"min_silos must be between 1 and the {len(self.silos)} silos, got {self.min_silos}"
            )

    @classmethod
    def with_defaults(
        cls, silos: Sequence[str], min_silos: int | None = None, **times: float
    ) -> FederationConfig:
        """If `min_silos` is None, all silos must take part."""
        return cls(tuple(silos), len(silos) if min_silos is None else min_silos, **times)


class Mailbox:
    """Sends and receives messages. Checks each one and writes it to the audit file."""

    def __init__(self, transport: Transport, federation: FederationConfig, audit: Audit) -> None:
        self.transport = transport
        self.federation = federation
        self.audit = audit
        self.refused: set[str] = set()  # silos whose last answers were refused

    @property
    def folder(self) -> Path:
        """The folder for large messages: that of the audit file."""
        return self.audit.path.parent

    def ask(
        self,
        requests: Mapping[str, Message],
        place: ExchangeId,
        expected: Mapping[str, Shapes],
        digest: str,
        seconds: float,
    ) -> Iterator[tuple[str, Content | None]]:
        """The silos' answers as they come; None for a silo that is gone or refused."""
        for silo, request in requests.items():
            kind = messages.glance(request.head)["kind"]
            self.audit.note("sent", silo, kind, place, request.size, digest)
        limit = HEAD_LIMIT + max(_nbytes(table) for table in expected.values())
        waiting, self.refused = set(requests), set()
        for silo, answer in self.transport.ask(requests, seconds, limit):
            waiting.discard(silo)
            if answer is None:
                log.warning("round %d: silo %r is gone; left out", place.round, silo)
                yield silo, None
                continue
            yield silo, self._read(silo, answer, place, expected, limit)
            del answer
        for silo in sorted(waiting):
            log.warning(
                "round %d: silo %r did not answer within %g s; left out",
                place.round,
                silo,
                seconds,
            )

    def _read(
        self,
        silo: str,
        answer: Message,
        place: ExchangeId,
        expected: Mapping[str, Shapes],
        limit: int,
    ) -> Content | None:
        try:
            if answer.size <= limit:
                answer = answer._replace(body=payload.shelved(answer.body, self.folder))
            found = messages.read(answer, place, expected, limit)
        except Refused as why:
            self.refused.add(silo)
            log.warning("round %d: refused a message of %r: %s", place.round, silo, why)
            self.audit.note("refused", silo, "", place, answer.size, "", why=str(why))
            return None
        self.audit.note("received", silo, found.kind, place, answer.size, found.digest)
        return found


def _nbytes(table: Shapes) -> int:
    return sum(torch.Size(shape or ()).numel() * dtype.itemsize for shape, dtype in table.values())
