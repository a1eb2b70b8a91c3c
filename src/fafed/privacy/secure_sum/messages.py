"""What travels in a secure sum, and its form as bytes.

A message is a tuple of numbers, texts, bytes and lists. It is written field by field, without names
and without pickle. `read` accepts any bytes: it returns a message in which every length is within
its limit, or raises `Refused`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from fafed.privacy.refusal import Refused

FORMAT = b"fafed secure sum 1\n"
MOST_SILOS = 2**16
NAME_BYTES = 200
CERTIFICATE_BYTES = 2**14
SIGNATURE_BYTES = 2**11
BOX_BYTES = 2**10
SEED = 16  # bytes: what the library of the shares splits at once, and as strong as X25519
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")

Message = TypeVar("Message")


class Context(NamedTuple):
    """Which exchange this is. Every key, signature and mask is bound to it."""

    run: str
    round: int
    exchange: int
    attempt: int


class Plan(NamedTuple):
    """The server's request to begin: the exchange, who is invited, and the threshold. All silos
    sign the same plan, so `task` shows them that all were asked for the same."""

    context: Context
    names: tuple[str, ...]
    threshold: int
    task: bytes = b""  # a digest of what the silos are to compute

    def digest(self) -> bytes:
        return digest("plan", write(self))

    def point(self, name: str) -> int:
        """Where this silo's shares are: the values of the polynomials at this point."""
        return self.names.index(name) + 1


class Keys(NamedTuple):
    """Step 0, from a silo: its public keys for this exchange, signed."""

    name: str
    box_key: bytes  # X25519: for the encryption of shares
    mask_key: bytes  # X25519: for the masks of pairs
    certificate: bytes
    signature: bytes


class KeyList(NamedTuple):
    """Step 1, to the silos: the keys of all that have answered."""

    keys: tuple[Keys, ...]

    def digest(self) -> bytes:
        return digest("keys", write(self))


class Box(NamedTuple):
    """Shares, encrypted. `name` is the recipient on the way up, the sender on the way down."""

    name: str
    content: bytes


class Boxes(NamedTuple):
    """Step 1, from a silo: a box for each other silo."""

    name: str
    boxes: tuple[Box, ...]


class Inbox(NamedTuple):
    """Step 2, to one silo: the boxes for it. Their senders and the silo itself go on."""

    boxes: tuple[Box, ...]


class Masked(NamedTuple):
    """Step 2, from a silo: its message under all masks, all leaves one after another."""

    name: str
    body: bytes | memoryview


class Answered(NamedTuple):
    """Step 3, to the silos: who has sent a masked message."""

    names: tuple[str, ...]


class Agreed(NamedTuple):
    """Step 3, from a silo: its signature on that list."""

    name: str
    signature: bytes


class Unmask(NamedTuple):
    """Step 4, to the silos: whose self masks and whose pair masks are to go, with the signatures
    of the silos on the list."""

    answered: tuple[str, ...]
    dropped: tuple[str, ...]
    signatures: tuple[Agreed, ...]


class Share(NamedTuple):
    """A share of one silo's secret."""

    name: str
    content: bytes


class Shares(NamedTuple):
    """Step 4, from a silo."""

    name: str
    seeds: tuple[Share, ...]  # of the self masks of silos that have answered
    mask_seeds: tuple[Share, ...]  # of the pair masks of silos that have not


class Held(NamedTuple):
    """What a silo knows during an exchange. It does not travel to anybody: another process of the
    silo goes on with it. It must not be written to disk."""

    next: str  # step
    plan: bytes
    box_key: bytes
    mask_seed: bytes
    seed: bytes
    own: bytes
    listed: bytes  # empty before step 1
    seeds: tuple[Share, ...]
    mask_seeds: tuple[Share, ...]
    sharing: tuple[str, ...]
    answered: tuple[str, ...]  # empty before step 3


# The form as bytes.


class Field(NamedTuple):
    write: Callable[[Any], list[bytes | memoryview]]
    read: Callable[[Reader], Any]


class Reader:
    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data).cast("B")
        self.at = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise Refused(f"a message ends after {len(self.data)} bytes, in the middle of a field")
        self.at += count
        return self.data[self.at - count : self.at]


def _number(most: int = 2**63 - 1) -> Field:
    def write(value: int) -> list[bytes | memoryview]:
        return [_checked(value, most).to_bytes(8, "little")]

    def read(reader: Reader) -> int:
        return _checked(int.from_bytes(reader.take(8), "little"), most)

    return Field(write, read)


def _bytes(most: int, least: int = 0, *, copy: bool = True) -> Field:
    length = _number(most)

    def write(value: bytes | memoryview) -> list[bytes | memoryview]:
        flat = memoryview(value).cast("B")
        return [*length.write(len(flat)), flat]

    def read(reader: Reader) -> bytes | memoryview:
        count = length.read(reader)
        if count < least:
            raise Refused(f"a field has {count} bytes, not {least}")
        found = reader.take(count)
        return bytes(found) if copy else found

    return Field(write, read)


def _text(most: int = NAME_BYTES) -> Field:
    inner = _bytes(most)

    def write(value: str) -> list[bytes | memoryview]:
        return inner.write(value.encode())

    def read(reader: Reader) -> str:
        try:
            return str(inner.read(reader), "utf-8")
        except UnicodeDecodeError:
            raise Refused("a name is not text") from None

    return Field(write, read)


def _name() -> Field:
    inner = _text()

    def read(reader: Reader) -> str:
        return checked_name(inner.read(reader))

    return Field(inner.write, read)


def _list(item: Field, most: int = MOST_SILOS) -> Field:
    length = _number(most)

    def write(values: Sequence[Any]) -> list[bytes | memoryview]:
        return [*length.write(len(values)), *(part for v in values for part in item.write(v))]

    def read(reader: Reader) -> tuple[Any, ...]:
        return tuple(item.read(reader) for _ in range(length.read(reader)))

    return Field(write, read)


def _record(kind: Callable[..., Any], *fields: Field) -> Field:
    def write(value: Sequence[Any]) -> list[bytes | memoryview]:
        pairs = zip(fields, value, strict=True)
        return [part for field, inner in pairs for part in field.write(inner)]

    def read(reader: Reader) -> Any:
        return kind(*(field.read(reader) for field in fields))

    return Field(write, read)


def _checked(value: int, most: int) -> int:
    if not 0 <= value <= most:
        raise Refused(f"a number in a message is {value}, beyond {most}")
    return value


def checked_name(name: str) -> str:
    if not NAME.fullmatch(name) or len(name.encode()) > NAME_BYTES:
        raise Refused(f"{name[:40]!r} is no name of a silo")
    return name


_CONTEXT = _record(Context, _text(), _number(), _number(), _number())
_KEY, _SEED = _bytes(32, 32), _bytes(SEED, SEED)
_KEYS = _record(Keys, _name(), _KEY, _KEY, _bytes(CERTIFICATE_BYTES), _bytes(SIGNATURE_BYTES))
_BOX = _record(Box, _name(), _bytes(BOX_BYTES))
_SHARE = _record(Share, _name(), _SEED)
_AGREED = _record(Agreed, _name(), _bytes(SIGNATURE_BYTES))
_FORMS: dict[type[Any], Field] = {
    Plan: _record(Plan, _CONTEXT, _list(_name()), _number(MOST_SILOS), _bytes(64)),
    Keys: _KEYS,
    KeyList: _record(KeyList, _list(_KEYS)),
    Boxes: _record(Boxes, _name(), _list(_BOX)),
    Inbox: _record(Inbox, _list(_BOX)),
    Masked: _record(Masked, _name(), _bytes(2**40, copy=False)),
    Answered: _record(Answered, _list(_name())),
    Agreed: _AGREED,
    Unmask: _record(Unmask, _list(_name()), _list(_name()), _list(_AGREED)),
    Shares: _record(Shares, _name(), _list(_SHARE), _list(_SHARE)),
    Held: _record(
        Held,
        *(_text(), _bytes(2**30), _KEY, _SEED, _SEED, _bytes(2**20), _bytes(2**30)),
        *(_list(_SHARE), _list(_SHARE), _list(_name()), _list(_name())),
    ),
}


def pieces(message: object) -> list[bytes | memoryview]:
    """The message as bytes, in pieces. The body of a masked message is not copied."""
    kind = type(message)
    return [FORMAT, kind.__name__.encode() + b"\n", *_FORMS[kind].write(message)]


def write(message: object) -> bytes:
    return b"".join(pieces(message))


def read(kind: type[Message], data: bytes | memoryview) -> Message:
    """The message of this kind in these bytes."""
    reader = Reader(data)
    start = FORMAT + kind.__name__.encode() + b"\n"
    if bytes(reader.data[: len(start)]) != start:
        raise Refused(f"these bytes are no message of the kind {kind.__name__}")
    reader.at = len(start)
    found: Message = _FORMS[kind].read(reader)
    if reader.at != len(reader.data):
        raise Refused(f"a message has {len(reader.data) - reader.at} bytes too many")
    return found


def digest(purpose: str, *parts: bytes) -> bytes:
    """A hash that is different for other purposes and for other parts."""
    found = hashlib.sha256(FORMAT)
    for part in (purpose.encode(), *parts):
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()
