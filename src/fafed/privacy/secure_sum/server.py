"""The server's side of a secure sum.

    requests = server.begin()
    while not isinstance(requests, Sum):
        requests = server.receive({name: answer of the silo to requests[name], ...})

A silo that does not answer is left out. So is one whose answer is wrong; `left_out` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from fafed.errors import FafedError
from fafed.privacy.options import LEAST_SILOS, default_threshold
from fafed.privacy.refusal import Refused
from fafed.privacy.secure_sum import masks, secrets
from fafed.privacy.secure_sum.identity import Trust, verify
from fafed.privacy.secure_sum.messages import (
    Agreed,
    Answered,
    Box,
    Boxes,
    Context,
    Inbox,
    KeyList,
    Keys,
    Masked,
    Plan,
    Share,
    Shares,
    Unmask,
)
from fafed.privacy.secure_sum.silo import STEPS, agreement, keys_to_sign

Request: TypeAlias = "Plan | KeyList | Inbox | Answered | Unmask"
Answer: TypeAlias = "Keys | Boxes | Masked | Agreed | Shares"
KINDS: dict[str, type[Answer]] = dict(
    zip(STEPS, (Keys, Boxes, Masked, Agreed, Shares), strict=True)
)


class TooFew(FafedError):
    """Fewer silos than the threshold have answered. There is no sum."""

    def __init__(self, step: str, names: Sequence[str], needed: int) -> None:
        super().__init__(
            f"step {step} of the secure sum: {len(names)} silos have answered "
            f"({', '.join(names) or 'none'}), {needed} are needed"
        )
        self.step = step


class Sum(NamedTuple):
    """The result: the sum of the messages of these silos, modulo 2^bits."""

    total: masks.Ring
    names: tuple[str, ...]


class Server:
    """One exchange. `lengths` are those of the leaves of a message."""

    def __init__(
        self,
        context: Context,
        names: Sequence[str],
        lengths: Sequence[int],
        *,
        bits: int = 64,
        threshold: int | None = None,
        trust: Trust | None = None,
        task: bytes = b"",
    ) -> None:
        """trust: with it, the server leaves out silos with wrong signatures. Without, the other
        silos find them, and stop. task: see `Plan`."""
        names = tuple(sorted(set(names)))
        if len(names) < LEAST_SILOS:
            raise TooFew("keys", names, LEAST_SILOS)
        threshold = default_threshold(len(names)) if threshold is None else threshold
        self.plan = Plan(context, names, threshold, task)
        self.digest = self.plan.digest()
        self.lengths = tuple(lengths)
        self.trust = trust
        self.left_out: dict[str, str] = {}
        self.total: masks.Ring = np.zeros(sum(lengths), masks.DTYPES[bits])
        self._step = 0
        self._asked: tuple[str, ...] = ()
        self._keys: dict[str, Keys] = {}
        self._boxes: dict[str, dict[str, Box]] = {}
        self._masked: list[str] = []
        self._to_sign = b""  # in step agree
        self._agreed: dict[str, Agreed] = {}
        self._shares: dict[str, Shares] = {}

    @property
    def step(self) -> str:
        return STEPS[self._step]

    def begin(self) -> dict[str, Request]:
        self._asked = self.plan.names
        return dict.fromkeys(self.plan.names, self.plan)

    def receive(self, answers: Mapping[str, Answer]) -> dict[str, Request] | Sum:
        """The next requests, or the sum."""
        for name, answer in answers.items():
            self.take(name, answer)
        return self.go_on()

    def take(self, name: str, answer: Answer) -> None:
        """Take one silo's answer to the current step. A masked message is added to the sum."""
        try:
            if name not in self._asked:
                raise Refused(f"{name} was not asked")
            if not isinstance(answer, KINDS[self.step]) or answer.name != name:
                raise Refused(f"{name} has not answered step {self.step}")
            if isinstance(answer, Keys):
                self._check_signature(
                    name,
                    answer.certificate,
                    answer.signature,
                    keys_to_sign(self.digest, name, answer.box_key, answer.mask_key),
                )
                self._keys[name] = answer
            elif isinstance(answer, Boxes):
                boxes = {box.name: box for box in answer.boxes}
                if len(boxes) < len(answer.boxes) or set(boxes) != set(self._keys) - {name}:
                    raise Refused(f"{name} has not sent one box for each other silo")
                self._boxes[name] = boxes
            elif isinstance(answer, Masked):
                self._add(answer)
            elif isinstance(answer, Agreed):
                certificate = self._keys[name].certificate
                self._check_signature(name, certificate, answer.signature, self._to_sign)
                self._agreed[name] = answer
            else:
                self._check_shares(answer)
                self._shares[name] = answer
        except Refused as why:
            self.left_out[name] = str(why)

    def go_on(self) -> dict[str, Request] | Sum:
        """End the step. Silos that have not answered are left out."""
        step, needed = self.step, self.plan.threshold
        if step in ("keys", "shares", "masked"):
            needed = max(needed, LEAST_SILOS)
        here = (self._keys, self._boxes, self._masked, self._agreed, self._shares)[self._step]
        names = tuple(sorted(here))
        if len(names) < needed:
            raise TooFew(step, names, needed)
        if step == "unmask":
            return self._unmasked()
        self._step, self._asked = self._step + 1, names
        if step == "keys":
            return dict.fromkeys(names, KeyList(tuple(self._keys[name] for name in names)))
        if step == "shares":
            return {name: self._inbox(name) for name in names}
        if step == "masked":
            self._to_sign = self._agreement()
            return dict.fromkeys(names, Answered(names))
        self._asked = self.answered  # a silo that has not signed may still hand over shares
        signatures = tuple(self._agreed[name] for name in names[:needed])  # enough for every silo
        return dict.fromkeys(self.answered, Unmask(self.answered, self.dropped, signatures))

    @property
    def sharing(self) -> tuple[str, ...]:
        return tuple(sorted(self._boxes))

    @property
    def answered(self) -> tuple[str, ...]:
        return tuple(sorted(self._masked))

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(name for name in self.sharing if name not in self._masked)

    def _inbox(self, name: str) -> Inbox:
        others = (other for other in self.sharing if other != name)
        return Inbox(tuple(Box(other, self._boxes[other][name].content) for other in others))

    def _add(self, answer: Masked) -> None:
        body = memoryview(answer.body).cast("B")
        if len(body) != self.total.nbytes:
            raise Refused(f"{answer.name} has sent {len(body)} bytes, not {self.total.nbytes}")
        if answer.name in self._masked:
            raise Refused(f"{answer.name} has answered twice")
        self.total += np.frombuffer(body, self.total.dtype)
        self._masked.append(answer.name)

    def _agreement(self) -> bytes:
        listed = KeyList(tuple(self._keys[name] for name in sorted(self._keys)))
        return agreement(self.digest, listed.digest(), self.sharing, self.answered)

    def _check_signature(
        self, name: str, certificate: bytes, signature: bytes, data: bytes
    ) -> None:
        if self.trust is not None:
            public = self.trust.public_key(name, certificate)
            verify(name, public, signature, data, f"step {self.step}")

    def _check_shares(self, answer: Shares) -> None:
        for own, wanted in ((answer.seeds, self.answered), (answer.mask_seeds, self.dropped)):
            if tuple(share.name for share in own) != wanted:
                raise Refused(f"{answer.name} has not handed over the shares that were asked for")

    # Removing the masks.

    def _unmasked(self) -> Sum:
        seeds = {name: self._combined(name, "seeds") for name in self.answered}
        found = [(-1, secrets.derive(seed, "self mask", self.digest)) for seed in seeds.values()]
        for gone in self.dropped:
            private = secrets.private_key(self._combined(gone, "mask_seeds"), self.digest)
            if private.public_key().public_bytes_raw() != self._keys[gone].mask_key:
                raise FafedError(
                    f"the shares of {gone} do not give its key: a silo has handed over a wrong one"
                )
            for name in self.answered:
                secret = secrets.agreed(private, self._keys[name].mask_key, name)
                sign = -1 if name < gone else 1
                found.append((sign, secrets.derive(secret, "pair mask", self.digest)))
        masks.apply(self.total, self.lengths, found)
        return Sum(self.total, self.answered)

    def _combined(self, name: str, kind: str) -> bytes:
        """The seed of a silo, from the shares that others have handed over."""
        found = {}
        for giver in sorted(self._shares)[: self.plan.threshold]:
            given: Sequence[Share] = getattr(self._shares[giver], kind)
            (content,) = (share.content for share in given if share.name == name)
            found[self.plan.point(giver)] = content
        return secrets.combine(found)
