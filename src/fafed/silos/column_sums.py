"""The exchanges before the first round in which silos find a shared normalisation of their inputs.

The server asks every silo for its sums twice (`fafed.data.normalise`). In an open run they travel
as they are, in `sums`. In a run with secure aggregation they are the message of a secure sum of
their own, as exchanges 0 and 1 of round 0, and the server sees the sum over all silos. Every silo
must answer. Then the server tells all silos the result with a second `hello`.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fafed.data import normalise
from fafed.data.normalise import LIMBS, Limbs, Normalisation
from fafed.errors import ConfigError, FafedError
from fafed.experiments.config import Experiment
from fafed.files import Json
from fafed.silos import messages
from fafed.silos.bounds import Bounds, Guard
from fafed.silos.limits import Refusal
from fafed.silos.messages import Content, ExchangeId, Facts, Message, Packed, Refused, Shapes
from fafed.silos.server import Mailbox, TooFew, Unfit, log

if TYPE_CHECKING:
    from fafed.silos.secure.silo import SecureSums

KIND = "sums"
WIDEST = 100.0  # how far a silo's own rows may lie from the centre, in widths, on average


# On the server.


def agreed(
    experiment: Experiment,
    mailbox: Mailbox,
    run: str,
    inputs: int,
    bounds: Bounds,
    authority: Path | None,
) -> Normalisation:
    """Ask all silos for their sums, and compute the centre and the width of each input."""
    at = ExchangeId(run, 0, 0, secrets.token_hex(8))
    total = _total(experiment, mailbox, at, (), inputs + 1, bounds, authority)
    try:
        rows, centre = normalise.centres(total)
        column = torch.tensor(centre, dtype=torch.float64)
        at = at._replace(exchange=1)
        total = _total(experiment, mailbox, at, (column,), inputs, bounds, authority)
        found = Normalisation(centre, normalise.widths(total, rows, centre))
        Normalisation.from_dict(found.to_dict())
    except (ConfigError, ValueError) as cause:
        raise FafedError(f"the silos' sums make no normalisation: {cause}") from cause
    log.info("inputs are normalised by means over %d rows of all silos", rows)
    return found


def _total(
    experiment: Experiment,
    mailbox: Mailbox,
    at: ExchangeId,
    sent: tuple[Tensor, ...],
    numbers: int,
    bounds: Bounds,
    authority: Path | None,
) -> Limbs:
    packed = messages.pack(sent)
    if experiment.privacy_options().secure:
        return _secure_total(experiment, mailbox, at, packed, numbers, authority)
    silos = mailbox.federation.silos
    requests = dict.fromkeys(silos, messages.write(KIND, at, {}, packed))
    kinds: dict[str, Shapes] = {KIND: {"0": ((numbers, LIMBS), torch.int64)}, **REFUSALS}
    found: dict[str, Limbs] = {}
    declined: dict[str, str] = {}
    for silo, answer in mailbox.ask(
        requests, at, kinds, packed.digest, mailbox.federation.deadline
    ):
        if answer is not None and answer.kind == KIND:
            found[silo] = _checked(silo, answer.tensors["0"].numpy())
        elif answer is not None:
            declined[silo] = _why(answer)
    _require_all(mailbox, found, declined)
    if at.exchange == 0 and len(silos) > 1:
        counts = [normalise.centres(found[silo])[0] for silo in silos]
        for index, why in Guard(bounds).too_many(counts).items():
            raise Unfit(f"{silos[index]}: {why}")
    return np.asarray(sum(found[silo] for silo in silos))


REFUSALS: dict[str, Shapes] = {"refused": {}, "failed": {}}


def _checked(silo: str, limbs: Limbs) -> Limbs:
    if np.abs(limbs).max() >= 2**normalise.BITS:
        raise Unfit(f"{silo}: it has sent sums that are no numbers")
    return limbs


def _why(answer: Content) -> str:
    return messages.clean(answer.facts.get("why", answer.facts.get("error", "it refuses")))


def _require_all(
    mailbox: Mailbox, found: Mapping[str, object], declined: Mapping[str, str]
) -> None:
    missing = [silo for silo in mailbox.federation.silos if silo not in found]
    if declined:
        raise Unfit("; ".join(f"{silo}: {why}" for silo, why in declined.items()))
    if missing:
        raise TooFew(
            f"{', '.join(missing)} did not send the sums by which inputs are normalised, and all "
            "silos are needed for it: bring them back and begin again"
        )


def _secure_total(
    experiment: Experiment,
    mailbox: Mailbox,
    at: ExchangeId,
    packed: Packed,
    numbers: int,
    authority: Path | None,
) -> Limbs:
    """The same as a secure sum of all silos."""
    from fafed.privacy.secure_sum import messages as wire
    from fafed.privacy.secure_sum.identity import ProjectCA
    from fafed.privacy.secure_sum.server import KINDS, Request, Server, Sum
    from fafed.silos.secure.silo import INTEGERS, as_tensor, packed_inbox
    from fafed.silos.secure.task import task

    silos, encoding = mailbox.federation.silos, experiment.privacy_options().encoding()
    server = Server(
        wire.Context(at.run, at.round, at.exchange, time.time_ns() // 1000),
        silos,
        [numbers * LIMBS],
        bits=encoding.bits,
        trust=None if authority is None else ProjectCA(authority.read_bytes()),
        task=task(experiment, len(silos), packed.digest, {}),
    )
    requests: dict[str, Request] | Sum = server.begin()
    while not isinstance(requests, Sum):
        step = server.step
        expected: Shapes = {"0": (None, torch.uint8)}
        if step == "masked":
            expected = {"0": ((numbers * LIMBS,), INTEGERS[encoding.bits])}
            letters, digest = {}, packed.digest
            for silo, request in requests.items():
                assert isinstance(request, wire.Inbox)
                facts: dict[str, Json] = {"inbox": packed_inbox(request)}
                letters[silo] = messages.write(step, at, facts, packed)
        else:  # all silos get the same
            body = messages.pack((as_tensor(wire.write(next(iter(requests.values())))),))
            letters, digest = (
                dict.fromkeys(requests, messages.write(step, at, {}, body)),
                body.digest,
            )
        given, declined = set(), {}
        kinds = {step: expected, "over": {}, **REFUSALS}
        for silo, answer in mailbox.ask(letters, at, kinds, digest, mailbox.federation.deadline):
            if answer is not None and answer.kind == step:
                data = answer.tensors["0"].numpy().tobytes()
                masked = step == "masked"
                server.take(
                    silo, wire.Masked(silo, data) if masked else wire.read(KINDS[step], data)
                )
                given.add(silo)
            elif answer is not None:
                declined[silo] = _why(answer)
        given -= set(server.left_out)
        _require_all(mailbox, dict.fromkeys(given), declined | server.left_out)
        requests = server.go_on()
    total = torch.from_numpy(requests.total.view(f"<i{encoding.bits // 8}")).to(torch.int64)
    return np.asarray(encoding.signed(total).numpy().reshape(numbers, LIMBS))


# On a silo.


def asked_for(request: Message, place: ExchangeId, kind: str, inputs: int, limit: int) -> Tensor:
    """What the server asks for: () for the first exchange, and the centre for the second."""
    if place.round != 0 or place.exchange not in (0, 1):
        raise Refused(f"there are no sums in exchange {place.exchange} of round {place.round}")
    shapes: Shapes = {"0": ((inputs,), torch.float64)} if place.exchange else {}
    found = messages.read(request, place, {kind: shapes}, limit)
    return found.tensors.get("0", torch.zeros(0))


def own_sums(place: ExchangeId, rows: Tensor, numbers: tuple[bool, ...], centre: Tensor) -> Tensor:
    if place.exchange == 0:
        return torch.from_numpy(normalise.first(rows, numbers))
    return torch.from_numpy(normalise.second(rows, centre.tolist(), numbers))


def masked(sums: SecureSums, limbs: Tensor, bits: int, facts: Facts) -> Tensor:
    """A silo's sums under its masks."""
    from fafed.privacy.secure_sum import messages as wire
    from fafed.privacy.secure_sum.masks import DTYPES
    from fafed.silos.secure.silo import INTEGERS

    vector = limbs.reshape(-1).to(INTEGERS[bits]).contiguous()
    ring = vector.numpy().view(DTYPES[bits])
    try:
        inbox = wire.read(wire.Inbox, base64.b64decode(str(facts.get("inbox")), validate=True))
    except (binascii.Error, ValueError):
        raise Refused("its inbox is not in base64") from None
    sums.silo.masked(inbox, ring, [len(vector)])
    return torch.from_numpy(ring.view(f"<i{bits // 8}"))


def check_far(rows: Tensor, how: Normalisation) -> None:
    """Refuse a centre and a width that the server has made up: with them it could choose what the
    model sees of this silo's rows."""
    numbers = rows.double()
    centre, width = (torch.tensor(own, dtype=torch.float64) for own in how)
    far = ((numbers - centre) / width).square().mean(0).sqrt().max()
    if not float(far) <= WIDEST:
        raise Refusal(
            "the server's normalisation puts this silo's rows far away from the centre, as an "
            f"honest one hardly does (limit {WIDEST:g} widths): compare the units of the columns "
            "with the other silos"
        )


def told(facts: Facts) -> Normalisation | None:
    """The normalisation in a hello."""
    given = facts.get("normalisation")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise Refused(f"normalisation is {messages.clean(given, 80)}, it must be a table")
    try:
        return Normalisation.from_dict(given)
    except ConfigError as cause:
        raise Refused(f"its normalisation is wrong: {cause}") from None
