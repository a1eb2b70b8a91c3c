"""Records as lines of a file, each with its checksum."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import NamedTuple

from fafed.core.records import Record
from fafed.files import sealed, unsealed


def to_line(record: Record) -> bytes:
    return (json.dumps(sealed(record.to_dict())) + "\n").encode()


class Lines(NamedTuple):
    """The content of a file of records."""

    records: list[Record]  # from round 1 on, up to the first damaged or missing one
    raw: list[bytes]  # their lines
    there: int  # the number of lines, damaged ones included
    wrong: str | None = None  # what is wrong with the line after them, if there is one
    torn: bool = False  # a kill has cut the last line short; it is not counted


def read(path: Path) -> Lines:
    """The whole file, up to the first damaged line."""
    *lines, rest = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    records: list[Record] = []
    sums = False
    for line in lines:
        try:
            record, sums = _parsed(line, len(records) + 1, sums)
        except (ValueError, TypeError, RecursionError) as error:
            number = len(records) + 1
            wrong = f"line {number}: {error}"
            return Lines(records, lines[: number - 1], len(lines), wrong, bool(rest))
        records.append(record)
    return Lines(records, lines, len(lines), None, bool(rest))


def last(path: Path) -> Record | None:
    """The last undamaged record, without reading the earlier ones. Progress displays use it."""
    *lines, _ = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    return _parsed(lines[-1], len(lines), False)[0] if lines else None


def _parsed(line: bytes, round: int, sums: bool) -> tuple[Record, bool]:
    content = json.loads(line)
    inner = unsealed(content)
    if sums and len(inner) == len(content):
        raise ValueError("it has no checksum, but the line before has one")
    for one in fields(Record):
        nested, given = one.default_factory is not MISSING, inner.get(one.name)
        if one.name not in inner and not nested:
            raise ValueError(f"it has no {one.name!r}")
        kinds = (dict,) if nested else (int, float)
        if given is not None and (not isinstance(given, kinds) or isinstance(given, bool)):
            raise ValueError(f"{one.name!r} is {given!r}")
    if inner["round"] != round:
        raise ValueError(f"round {inner['round']} is where round {round} should be")
    return Record(**inner), len(inner) < len(content)
