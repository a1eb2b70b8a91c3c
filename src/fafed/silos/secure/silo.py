"""The silo's side of secure sums: who it is, whom it trusts, and its answers to the five steps."""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path

import torch
from torch import Tensor

from fafed.core import tree
from fafed.engines.answered import Answers
from fafed.engines.client import Visit
from fafed.engines.encoded import EncodedMean, Encoder
from fafed.errors import ConfigError
from fafed.privacy.secure_sum import messages as wire
from fafed.privacy.secure_sum.identity import Identity, Pinned, ProjectCA, Trust
from fafed.privacy.secure_sum.masks import DTYPES
from fafed.privacy.secure_sum.silo import Ledger, Silo
from fafed.silos import payload
from fafed.silos.limits import Refusal
from fafed.silos.messages import ExchangeId, Facts, Refused
from fafed.silos.site import Kit, Site

REQUESTS: dict[str, type[tuple[object, ...]]] = {
    "keys": wire.Plan,
    "shares": wire.KeyList,
    "agree": wire.Answered,
    "unmask": wire.Unmask,
}
INTEGERS = {64: torch.int64, 32: torch.int32}  # bits -> the type in which sums travel


class BeyondBounds(Exception):
    """The silo's numbers are too large for these leaves. It is absent from this exchange."""

    def __init__(self, leaves: list[str], reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))  # for the silo's own log
        self.leaves = leaves


class SecureSums:
    """The secure sums of one silo, one after another. Their secrets are in memory alone."""

    def __init__(
        self, name: str, site: Site, kit: Kit | None, carried: bytes | None = None
    ) -> None:
        """carried: what `held` of the process before gave, where every message has a process of its
        own; b"" if it gave nothing. None: one process has all messages."""
        own = site.secure
        name = own.name or name
        identity, trust = _identity(name, site, kit), _trust(site, kit)
        members = own.keys or own.silos
        if not members:
            raise Refusal(
                "this silo's file does not say which silos may be in a sum with it: who runs the "
                "silo can add [secure] silos = [...] with the names of all silos"
            )
        if name not in members:
            raise Refusal(f"{name} itself is not among the silos in the [secure] of its file")
        trust.public_key(name, identity.certificate)  # a wrong one is found now, not in round 1
        ledger = Ledger(site.folder / "secure-sums.json")
        least = site.limits.min_silos_in_sum
        self.folder = site.folder
        self.silo = Silo(identity, trust, members, least=least, ledger=ledger)
        self.place: ExchangeId | None = None
        self.task = b""
        self.once = carried is not None
        if carried:
            head, _, rest = carried.partition(b"\n")
            run, round, exchange, attempt = json.loads(head)
            self.place = ExchangeId(run, round, exchange, attempt)
            self.plan = self.silo.resume(rest)
            self.task = self.plan.task

    def held(self) -> bytes:
        """The sum under way, for the next process of this silo. It must stay in memory."""
        rest = self.silo.held()
        return json.dumps(self.place).encode() + b"\n" + rest if rest else b""

    def answer(self, step: str, place: ExchangeId, data: bytes) -> Tensor:
        """The answer to a request of any step but `masked`, as bytes."""
        request: tuple[object, ...] = wire.read(REQUESTS[step], data)
        if isinstance(request, wire.Plan):
            if request.context[:3] != place[:3]:
                raise Refused(f"the plan is for {request.context}, and the message for {place}")
            self.place, self.task, self.plan = place, request.task, request
        else:
            self._check_place(place)
        self._claim(step)
        return as_tensor(wire.write(getattr(self.silo, step)(request)))

    def check_task(self, place: ExchangeId, found: bytes) -> None:
        """Refuse work that is not the one in the plan that all silos have signed."""
        self._check_place(place)
        self._claim("masked")
        if found != self.task:
            self.silo.forget("it was asked to compute something else than the plan says")
            raise Refused(
                "it asks this silo to compute something else than the plan says that all silos "
                "have signed"
            )

    def masked(
        self, client: int, done: Visit, buffers: tuple[Tensor, ...], encoder: Encoder, facts: Facts
    ) -> Tensor:
        """The silo's answer, encoded and masked. `buffers` are those that the server sent."""
        sent = done.message, done.buffers
        mean = EncodedMean(encoder, buffers)
        lengths, bits = mean.lengths(sent), encoder.encoding.bits
        vector = payload.zeros(self.folder, sum(lengths), INTEGERS[bits])
        mean.start(sent, vector)
        one = tree.map(lambda leaf: leaf[None], sent)
        own = done.loss[None], done.has_loss[None], done.evaluations, done.samples
        mean.answer(Answers([client], one, *own))
        if mean.beyond:
            self.silo.forget("its numbers are beyond the bounds")
            raise BeyondBounds(sorted(mean.beyond), mean.reasons)
        inbox = wire.read(wire.Inbox, _unpacked(facts.get("inbox")))
        self.silo.masked(inbox, vector.numpy().view(DTYPES[bits]), lengths)
        return vector

    def _claim(self, step: str) -> None:
        if self.once:
            self.silo.ledger.claim(self.plan.context, step)

    def _check_place(self, place: ExchangeId) -> None:
        if place != self.place:
            raise Refused("this silo has no secure sum of this exchange under way")


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def packed_inbox(inbox: wire.Inbox) -> str:
    """The boxes for one silo, as text: the numbers of the message are then the same for all."""
    return base64.b64encode(wire.write(inbox)).decode()


def _unpacked(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        raise Refused("its inbox is not in base64") from None


def _identity(name: str, site: Site, kit: Kit | None) -> Identity:
    if site.secure.key is not None:
        return Identity.from_pem(name, _content(site.secure.key, "key in [secure]"))
    if kit is None:
        raise Refusal(
            "this silo has no key to sign with: on FLARE it has the kit's; elsewhere who runs the "
            "silo can add [secure] key = 'FILE' and [secure.keys] to the silo's file"
        )
    return Identity.from_pem(
        name, _content(kit.key, "the kit's key"), _content(kit.certificate, "the certificate")
    )


def _trust(site: Site, kit: Kit | None) -> Trust:
    if site.secure.keys:
        return Pinned.from_texts(site.secure.keys)
    if kit is None or site.secure.key is not None:
        raise Refusal(
            "this silo does not know the others' keys: who runs the silo can add [secure.keys] to "
            "the silo's file"
        )
    return ProjectCA(_content(kit.authority, "the project's root certificate"))


def _content(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise ConfigError(f"{what} {path} cannot be read: {cause}") from cause
