"""A silo's side of a secure sum.

It answers one request after another. It checks all that the server says, and refuses to go on if
something is wrong. Then it forgets its secrets, so the server cannot try again in this exchange.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from filelock import FileLock, Timeout

from fafed import files
from fafed.errors import ConfigError, FafedError
from fafed.privacy.options import LEAST_SILOS, default_threshold
from fafed.privacy.refusal import Over, Refused
from fafed.privacy.secure_sum import masks, secrets
from fafed.privacy.secure_sum.identity import Identity, Trust, verify
from fafed.privacy.secure_sum.messages import (
    SEED,
    Agreed,
    Answered,
    Box,
    Boxes,
    Context,
    Held,
    Inbox,
    KeyList,
    Keys,
    Masked,
    Plan,
    Share,
    Shares,
    Unmask,
    digest,
    read,
    write,
)

STEPS = ("keys", "shares", "masked", "agree", "unmask")
LOCK_SECONDS = 60.0  # the longest wait for another process; it needs the ledger for milliseconds


class Ledger:
    """The exchanges for which this silo has handed over shares. It hands over none for them again,
    whatever the server says became of the first ones: two sums over different silos would show the
    difference. With a path, the ledger survives a restart, and all processes of the silo share
    it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.handed_over: dict[str, tuple[int, int]] = {}  # run -> its last round and exchange
        self.begun: dict[str, tuple[int, int, int]] = {}  # run -> the last one, with the attempt
        self._read()

    def begin(self, context: Context) -> None:
        """Refuse an exchange that is over, and one that is older than the last one."""
        self._read()
        self._check(context)
        run, place = context.run, (context.round, context.exchange)
        if run in self.begun and (*place, context.attempt) <= self.begun[run]:
            raise Refused(
                f"round {context.round}, exchange {context.exchange}, attempt {context.attempt} of "
                f"{run} is old: this silo has begun {self.begun[run]}"
            )
        self.begun[run] = (*place, context.attempt)

    def hand_over(self, context: Context) -> None:
        """Note it before it happens, on disk. Another process of this silo may have handed over
        shares for the same exchange."""
        with self._locked():
            self._read()
            self._check(context)
            self.handed_over[context.run] = context.round, context.exchange
            if self.path is not None:
                content = {run: list(place) for run, place in self.handed_over.items()}
                files.write(self.path, [json.dumps(files.sealed(content)).encode()], private=True)

    def claim(self, context: Context, step: str) -> None:
        """Refuse a step that another process of this silo has begun. Both would go on from the
        same secrets, and the server could get two answers."""
        assert self.path is not None, "processes share a ledger on disk"
        path = self.path.with_name("secure-steps.json")
        with self._locked():
            try:
                known = files.unsealed(json.loads(path.read_text("utf-8"))) if path.exists() else {}
                last = tuple(known.get(context.run, ()))
            except (OSError, ValueError, TypeError) as cause:
                raise FafedError(f"{path} is damaged ({cause}): delete it") from cause
            now = (context.round, context.exchange, context.attempt, STEPS.index(step))
            if last and now <= last:
                raise Refused(f"step {step} was begun before: this silo answers it once")
            content = known | {context.run: list(now)}
            files.write(path, [json.dumps(files.sealed(content)).encode()], private=True)

    def _check(self, context: Context) -> None:
        run, place = context.run, (context.round, context.exchange)
        if run in self.handed_over and place <= self.handed_over[run]:
            raise Over(
                f"round {context.round}, exchange {context.exchange} of {run} cannot be made "
                "again: this silo has handed over shares for it, or for a later one"
            )

    def _read(self) -> None:
        if self.path is None or not self.path.exists():
            return
        try:
            content = files.unsealed(json.loads(self.path.read_text("utf-8")))
            self.handed_over = {run: (int(r), int(e)) for run, (r, e) in content.items()}
        except (OSError, ValueError, TypeError) as cause:
            raise FafedError(
                f"{self.path} is damaged ({cause}): restore it from a backup. It says which sums "
                "this silo must not take part in again"
            ) from cause

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self.path is None:
            yield
            return
        lock = FileLock(self.path.with_suffix(".lock"), mode=0o600)
        try:
            held = lock.acquire(timeout=LOCK_SECONDS)
        except (Timeout, OSError) as cause:
            raise FafedError(f"{self.path} cannot be used: {cause}") from cause
        with held:
            yield


@dataclass
class _Exchange:
    """What a silo knows during one exchange. It is never written to disk."""

    plan: Plan
    digest: bytes
    box_key: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    mask_seed: bytes = field(default_factory=lambda: os.urandom(SEED))
    seed: bytes = field(default_factory=lambda: os.urandom(SEED))
    own: Keys | None = None
    keys: dict[str, Keys] = field(default_factory=dict)  # of all silos with keys
    listed: bytes = b""  # the digest of the list of keys
    kept: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)  # shares of the others
    sharing: tuple[str, ...] = ()  # silos whose shares have arrived
    answered: tuple[str, ...] | None = None
    box_secrets: dict[str, bytes] = field(default_factory=dict)
    mask_key: X25519PrivateKey = field(init=False)

    def __post_init__(self) -> None:
        self.mask_key = secrets.private_key(self.mask_seed, self.digest)

    def box_secret(self, other: str) -> bytes:
        """The secret of the boxes to and from another silo. It is agreed once for both."""
        if other not in self.box_secrets:
            their = self.keys[other].box_key
            self.box_secrets[other] = secrets.agreed(self.box_key, their, other)
        return self.box_secrets[other]

    def agreement(self) -> bytes:
        """What silos sign in step 3."""
        return agreement(self.digest, self.listed, self.sharing, self.answered or ())


def keys_to_sign(plan: bytes, name: str, box_key: bytes, mask_key: bytes) -> bytes:
    return digest("silo keys", plan, name.encode(), box_key, mask_key)


def agreement(plan: bytes, listed: bytes, sharing: Sequence[str], answered: Sequence[str]) -> bytes:
    lists = (digest("names", *(name.encode() for name in names)) for names in (sharing, answered))
    return digest("agreement", plan, listed, *lists)


class Silo:
    """One silo. `members` are all silos of the federation, as this silo knows them: the server
    itself may have a certificate of the project, too, and must not take part in its own sum."""

    def __init__(
        self,
        identity: Identity,
        trust: Trust,
        members: Collection[str],
        *,
        threshold: int | None = None,
        least: int = LEAST_SILOS,
        ledger: Ledger | None = None,
    ) -> None:
        """threshold: the least that this silo accepts; None: more than two thirds of the silos.
        least: the fewest silos in a sum that this silo accepts."""
        if threshold is not None and threshold < 2:
            raise ConfigError(
                f"threshold must be at least 2, got {threshold!r}: one silo alone could remove "
                "the masks of all others"
            )
        self.name = identity.name
        self.identity = identity
        self.trust = trust
        self.members = frozenset(members)
        self.threshold = threshold
        self.least = max(least, LEAST_SILOS)
        self.ledger = ledger or Ledger()
        self._exchange: _Exchange | None = None
        self._next = "keys"
        self._over = "no exchange has begun"

    # The five steps.

    def keys(self, plan: Plan) -> Keys:
        """Step 0: fresh keys, signed."""
        self.forget("another exchange has begun")
        with self._refusing():
            self._check_plan(plan)
            self.ledger.begin(plan.context)
            here = _Exchange(plan, plan.digest())
            box_key = here.box_key.public_key().public_bytes_raw()
            mask_key = here.mask_key.public_key().public_bytes_raw()
            signed = keys_to_sign(here.digest, self.name, box_key, mask_key)
            signature = self.identity.sign(signed)
            here.own = Keys(self.name, box_key, mask_key, self.identity.certificate, signature)
            self._exchange, self._next = here, "shares"
            return here.own

    def shares(self, listed: KeyList) -> Boxes:
        """Step 1: the secrets of the masks, in shares, each encrypted for one silo."""
        with self._step("shares") as here:
            here.keys = {one.name: one for one in listed.keys}
            here.listed = listed.digest()
            self._check_keys(here, listed)
            plan = here.plan
            count = len(plan.names)
            seeds = secrets.split(here.seed, plan.threshold, count)
            mask_seeds = secrets.split(here.mask_seed, plan.threshold, count)
            boxes = []
            for other in here.keys:
                shares = seeds[plan.point(other)], mask_seeds[plan.point(other)]
                if other == self.name:
                    here.kept[other] = shares
                    continue
                secret = here.box_secret(other)
                sealed = secrets.seal(secret, here.digest, self.name, other, b"".join(shares))
                boxes.append(Box(other, sealed))
            self._next = "masked"
            return Boxes(self.name, tuple(boxes))

    def masked(self, inbox: Inbox, vector: masks.Ring, lengths: Sequence[int]) -> Masked:
        """Step 2: this silo's message under all masks. `vector` is changed in place: it has the
        leaves, of these lengths, one after another."""
        with self._step("masked") as here:
            self._check_inbox(here, inbox)
            masks.apply(vector, lengths, self._own_masks(here))
            self._next = "agree"
            return Masked(self.name, memoryview(vector).cast("B"))  # type: ignore[arg-type]

    def agree(self, answered: Answered) -> Agreed:
        """Step 3: a signature on the list of those who have answered."""
        here = self._exchange
        if here is not None and here.answered not in (None, answered.names):
            raise self._stopped(
                f"{self.name} was shown two lists of silos in one exchange: {here.answered} and "
                f"{answered.names}"
            )
        with self._step("agree") as here:
            self._check_answered(here, answered.names)
            here.answered = answered.names
            self._next = "unmask"
            return Agreed(self.name, self.identity.sign(here.agreement()))

    def unmask(self, request: Unmask) -> Shares:
        """Step 4: the shares that remove the masks of the agreed list. Then all is forgotten."""
        with self._step("unmask") as here:
            self._check_request(here, request)
            self._check_signatures(here, request.signatures)
            self.ledger.hand_over(here.plan.context)
            seeds = (Share(name, here.kept[name][0]) for name in request.answered)
            mask_seeds = (Share(name, here.kept[name][1]) for name in request.dropped)
            found = Shares(self.name, tuple(seeds), tuple(mask_seeds))
            self.forget("this silo has handed over its shares, and has forgotten the rest")
            return found

    def forget(self, why: str = "the exchange is over") -> None:
        """Drop all keys, seeds and shares of the exchange."""
        self._exchange, self._next, self._over = None, "keys", why

    # Where every message has a process of its own, the exchange goes from one to the next.

    def held(self) -> bytes:
        """The exchange under way, with its secrets; empty if there is none."""
        here = self._exchange
        if here is None or here.own is None:
            return b""
        listed = write(KeyList(tuple(here.keys.values()))) if here.keys else b""
        return write(
            Held(
                self._next,
                write(here.plan),
                here.box_key.private_bytes_raw(),
                here.mask_seed,
                here.seed,
                write(here.own),
                listed,
                tuple(Share(name, seed) for name, (seed, _) in here.kept.items()),
                tuple(Share(name, key) for name, (_, key) in here.kept.items()),
                here.sharing,
                here.answered or (),
            )
        )

    def resume(self, data: bytes) -> Plan:
        """Go on with an exchange that another process of this silo has held."""
        held = read(Held, data)
        plan = read(Plan, held.plan)
        private = X25519PrivateKey.from_private_bytes
        here = _Exchange(plan, plan.digest(), private(held.box_key), held.mask_seed, held.seed)
        here.own = read(Keys, held.own)
        if held.listed:
            listed = read(KeyList, held.listed)
            here.keys, here.listed = {one.name: one for one in listed.keys}, listed.digest()
        pairs = zip(held.seeds, held.mask_seeds, strict=True)
        here.kept = {seed.name: (seed.content, key.content) for seed, key in pairs}
        here.sharing, here.answered = held.sharing, held.answered or None
        self._exchange, self._next = here, held.next
        return plan

    # Steps follow each other. A refusal ends the exchange.

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[_Exchange]:
        here = self._exchange
        if here is None:
            raise Refused(f"{self.name} refuses step {name}: {self._over}")
        with self._refusing():
            if self._next != name:
                raise Refused(f"{self.name} was asked for step {name} instead of {self._next}")
            yield here

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as cause:
            self.forget(f"it has stopped this exchange ({cause})")
            raise

    def _stopped(self, why: str) -> Refused:
        self.forget(f"it has stopped this exchange ({why})")
        return Refused(why)

    # What a silo checks.

    def _check_plan(self, plan: Plan) -> None:
        names, count = plan.names, len(plan.names)
        if list(names) != sorted(set(names)):
            raise Refused("the list of silos is not sorted, or names a silo twice")
        strangers = sorted(set(names) - self.members)
        if strangers:
            raise Refused(f"{', '.join(strangers)}: not known to {self.name} as a silo")
        if self.name not in names:
            raise Refused(f"{self.name} is not in the list of silos")
        if count < self.least:
            raise Refused(f"{count} silos are too few: {self.name} needs {self.least} in a sum")
        least = default_threshold(count) if self.threshold is None else self.threshold
        if not least <= plan.threshold <= count:
            raise Refused(
                f"the threshold {plan.threshold} of {count} silos is not allowed: {self.name} "
                f"accepts {least} or more"
            )

    def _check_keys(self, here: _Exchange, listed: KeyList) -> None:
        names = [one.name for one in listed.keys]
        self._check_list("keys", names, here.plan.names, here.plan.threshold)
        if here.keys[self.name] != here.own:
            raise Refused(f"the keys of {self.name} itself were replaced on the way")
        for one in listed.keys:
            self._check_silo(here, one)

    def _check_silo(self, here: _Exchange, keys: Keys) -> None:
        public = self.trust.public_key(keys.name, keys.certificate)
        signed = keys_to_sign(here.digest, keys.name, keys.box_key, keys.mask_key)
        verify(keys.name, public, keys.signature, signed, "the list of keys")

    def _check_inbox(self, here: _Exchange, inbox: Inbox) -> None:
        senders = [box.name for box in inbox.boxes]
        here.sharing = tuple(sorted({*senders, self.name}))
        if self.name in senders or len(set(senders)) < len(senders):
            raise Refused("shares of one silo have come twice")
        self._check_list("shares", here.sharing, list(here.keys), here.plan.threshold)
        for box in inbox.boxes:
            secret = here.box_secret(box.name)
            content = secrets.unseal(secret, here.digest, box.name, self.name, box.content)
            if len(content) != 2 * SEED:
                raise Refused(f"the shares of {box.name} have {len(content)} bytes, not {2 * SEED}")
            here.kept[box.name] = content[:SEED], content[SEED:]

    def _check_answered(self, here: _Exchange, names: Sequence[str]) -> None:
        self._check_list("masked messages", names, here.sharing, here.plan.threshold)

    def _check_request(self, here: _Exchange, request: Unmask) -> None:
        both = sorted(set(request.answered) & set(request.dropped))
        if both:
            raise Refused(f"the server asks for both shares of {', '.join(both)}")
        dropped = tuple(name for name in here.sharing if name not in (here.answered or ()))
        if request.answered != here.answered or request.dropped != dropped:
            raise Refused(
                "the server wants to remove the masks of other silos than those agreed on: "
                f"{', '.join(request.answered)}"
            )

    def _check_signatures(self, here: _Exchange, signatures: Sequence[Agreed]) -> None:
        names = [one.name for one in signatures]
        if len(set(names)) < len(names) or not set(names) <= set(here.answered or ()):
            raise Refused(
                "a signature on the list of silos is not from one of them, or comes twice"
            )
        if len(names) < here.plan.threshold:
            raise Refused(f"{len(names)} silos agree on the list, {here.plan.threshold} are needed")
        signed = here.agreement()
        for one in signatures:
            public = self.trust.public_key(one.name, here.keys[one.name].certificate)
            verify(one.name, public, one.signature, signed, "the list of silos")

    def _own_masks(self, here: _Exchange) -> masks.SignedKeys:
        own = [(1, secrets.derive(here.seed, "self mask", here.digest))]
        for other in here.sharing:
            if other != self.name:
                secret = secrets.agreed(here.mask_key, here.keys[other].mask_key, other)
                sign = 1 if self.name < other else -1
                own.append((sign, secrets.derive(secret, "pair mask", here.digest)))
        return own

    def _check_list(
        self, what: str, names: Sequence[str], allowed: Collection[str], threshold: int
    ) -> None:
        if list(names) != sorted(set(names)):
            raise Refused(f"the list of {what} is not sorted, or names a silo twice")
        strangers = sorted(set(names) - set(allowed))
        if strangers:
            raise Refused(f"the list of {what} has {', '.join(strangers)}, who cannot be in it")
        if self.name not in names:
            raise Refused(f"the list of {what} does not have {self.name} itself")
        needed = max(threshold, self.least)
        if len(names) < needed:
            raise Refused(f"the list of {what} has {len(names)} silos, {needed} are needed")
