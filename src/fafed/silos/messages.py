"""Messages between the server and a silo, and the checks that they must pass.

A message has a head and a body. The head is JSON: some facts, and a table of the tensors. The body
is the bytes of the tensors one after another, in little-endian order. Nothing is pickled. `read`
accepts any bytes. It returns the content if every shape and number is as expected, and raises
`Refused` otherwise. `payload` stores a large body and reads it without a copy.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, cast, overload

import torch
from torch import Tensor

from fafed.core import tree
from fafed.errors import FafedError
from fafed.files import Json
from fafed.silos import payload
from fafed.silos.payload import Body

FORMAT = 1
HEAD_LIMIT = 2**20  # bytes; a head with an experiment in it takes a few thousand
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
assert sys.byteorder == "little", "messages are little-endian, as is every machine torch runs on"


class Refused(FafedError):
    """A message is wrong. The error says why."""


class Message(NamedTuple):
    """A message as it travels. The body is made once for all silos of an exchange."""

    head: bytes
    body: Body

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)


Facts: TypeAlias = Mapping[str, Json]  # what a message says beside its tensors


class Head(TypedDict):
    """The head of a message, well-formed."""

    format: int
    kind: str
    run: str
    round: int
    exchange: int
    attempt: str
    facts: Facts
    tensors: list[Any]  # rows, not checked yet, of name, dtype, shape
    sha256: str


class ExchangeId(NamedTuple):
    """Which run, round and exchange a message belongs to."""

    run: str
    round: int = 0
    exchange: int = 0
    attempt: str = ""  # a repeated round has a new one

    @classmethod
    def from_head(cls, head: Head) -> ExchangeId:
        """The run, round and exchange that a message's head names."""
        return cls(head["run"], head["round"], head["exchange"], head["attempt"])


class Packed(NamedTuple):
    """The tensors of a message, ready to be sent to any number of silos."""

    table: list[list[str | list[int]]]  # name, dtype, shape
    body: Body
    digest: str


class Content(NamedTuple):
    """The content of a message, after all checks."""

    kind: str
    place: ExchangeId
    facts: Facts
    tensors: dict[str, Tensor]
    digest: str


Shapes = dict[str, tuple[tuple[int, ...] | None, torch.dtype]]  # None: any shape


def pack(content: object) -> Packed:
    """A tree of tensors, or tensors by their names. Large ones are not copied: do not change them
    until the message has been sent."""
    leaves = dict(content) if isinstance(content, Mapping) else tree.flatten(content)
    table: list[list[str | list[int]]] = [
        [name, NAMES[leaf.dtype], list(leaf.shape)] for name, leaf in leaves.items()
    ]
    body = payload.chained(list(leaves.values()))
    return Packed(table, body, payload.digest(body))


def write(kind: str, place: ExchangeId, facts: Facts, packed: Packed) -> Message:
    head = {
        "format": FORMAT,
        "kind": kind,
        **place._asdict(),
        "facts": dict(facts),
        "tensors": packed.table,
        "sha256": packed.digest,
    }
    return Message(json.dumps(head, allow_nan=False).encode(), packed.body)


EMPTY = pack(())


def shapes(content: object) -> Shapes:
    """The shapes and types of such a message."""
    return {n: (tuple(leaf.shape), leaf.dtype) for n, leaf in tree.flatten(content).items()}


def glance(head: bytes) -> Head:
    """The head of a message. It is well-formed, but its values are not checked yet."""
    if len(head) > HEAD_LIMIT:
        raise Refused(f"its head has {len(head)} bytes, more than {HEAD_LIMIT}")
    try:
        found = json.loads(head, parse_constant=_no_constant)
    except (ValueError, RecursionError) as cause:
        raise Refused(f"its head is not JSON: {cause}") from None
    if not isinstance(found, dict):
        raise Refused("its head is not a table")
    if found.get("format") != FORMAT:
        raise Refused(
            f"its format is {_short(found.get('format'))}, this fafed speaks {FORMAT}: "
            "use the same version everywhere"
        )
    kinds = {"kind": str, "run": str, "round": int, "exchange": int, "attempt": str}
    kinds |= {"facts": dict, "tensors": list, "sha256": str}
    for name, kind in kinds.items():
        if type(found.get(name)) is not kind:
            raise Refused(f"{name} is {_short(found.get(name))}, it must be a {kind.__name__}")
    for name in ("run", "attempt"):  # they become parts of file names
        if not re.fullmatch(r"[0-9a-zA-Z-]{0,64}", found[name]):
            raise Refused(f"{name} is {_short(found[name])}, it must be letters and digits")
    return cast(Head, found)


def read(
    message: Message,
    place: ExchangeId,
    expected: Mapping[str, Shapes],
    limit: int,
    *,
    finite: bool = True,
) -> Content:
    """The content of a message. Its kind must be `expected`, and its exchange this one."""
    if message.size > limit:
        raise Refused(f"it has {message.size} bytes, more than the {limit} that it may have")
    found = glance(message.head)
    if found["kind"] not in expected:
        raise Refused(f"it is a {_short(found['kind'])}, expected {' or '.join(expected)}")
    for name, value, want in zip(place._fields, ExchangeId.from_head(found), place, strict=True):
        if value != want:
            raise Refused(f"{name} is {_short(value)}, expected {_short(want)}")
    table = _table(found["tensors"], expected[found["kind"]], len(message.body))
    if payload.digest(message.body) != found["sha256"]:
        raise Refused("its numbers do not fit their checksum")
    tensors, at = {}, 0
    for name, dtype, shape in table:
        tensors[name] = leaf = payload.tensor(message.body, dtype, shape, at)
        _check(name, leaf, finite)
        at += leaf.numel() * leaf.element_size()
    return Content(found["kind"], place, found["facts"], tensors, found["sha256"])


def _check(name: str, leaf: Tensor, finite: bool) -> None:
    if leaf.dtype is torch.bool:
        if leaf.numel() and leaf.reshape(-1).view(torch.uint8).max() > 1:
            raise Refused(f"{name} holds something that is no truth value")
    elif finite and leaf.is_floating_point():
        for stretch in payload.stretches(leaf):
            if not tree.finite(stretch):
                raise Refused(f"{name} holds NaN or infinity")


@overload
def number(facts: Facts, name: str) -> float: ...
@overload
def number(
    facts: Facts, name: str, *, whole: Literal[True], low: int = 0, high: int = 2**53 - 1
) -> int: ...
def number(
    facts: Facts,
    name: str,
    *,
    whole: bool = False,
    low: int = 0,
    high: int = 2**53 - 1,  # a larger one may be no float
) -> float:
    """A finite number among the facts. An integer is at least `low`, and no number exceeds
    `high`."""
    value = facts.get(name)
    if type(value) is int:
        good = abs(value) <= high and (value >= low or not whole)
    else:
        good = type(value) is float and math.isfinite(value) and not whole
    if not good:
        kind = f"a whole number from {low} to {high}" if whole else "a number"
        raise Refused(f"{name} is {_short(value)}, it must be {kind}")
    return cast(float, value)


def _table(
    rows: Sequence[object], expected: Shapes, size: int
) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    table, total = [], 0
    for row in rows:
        if not (type(row) is list and len(row) == 3 and type(row[2]) is list):
            raise Refused(f"{_short(row)} does not describe a tensor")
        name, kind, shape = row
        if type(name) is not str or name not in expected:
            raise Refused(f"it holds {_short(name)}, which nobody asked for")
        if not all(type(n) is int and 0 <= n < 2**48 for n in shape) or len(shape) > 8:
            raise Refused(f"{name} has the shape {_short(shape)}")
        want, dtype = expected[name]
        if kind != NAMES[dtype]:
            raise Refused(f"{name} has the type {_short(kind)}, expected {NAMES[dtype]}")
        if want is not None and tuple(shape) != want:
            raise Refused(f"{name} has the shape {_short(shape)}, expected {list(want)}")
        total += math.prod(shape) * dtype.itemsize
        if total > size:
            raise Refused(f"its body has {size} bytes, its tensors need more")
        table.append((name, dtype, tuple(shape)))
    names = [name for name, _, _ in table]
    if len(set(names)) != len(names) or set(names) != set(expected):
        raise Refused(f"it holds {_short(names)}, expected {_short(list(expected))}")
    if total != size:
        raise Refused(f"its body has {size} bytes, its tensors need {total}")
    return table


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def clean(text: object, length: int = 300) -> str:
    """Make text from another machine safe for a log: short, on one line, without control
    characters for a terminal."""
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    return line if len(line) <= length else line[: length - 3] + "..."


class OneLine(logging.Formatter):
    """Every log record is one line, so its text cannot imitate another record."""

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).splitlines()
        return "\n    ".join(clean(line, len(line)) for line in lines)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
