"""What a run tells about itself, round by round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from fafed.files import sealed, unsealed


@dataclass(frozen=True)
class Record:
    """One finished round. Counts are sums since the start, over all clients."""

    round: int
    steps: int  # local steps of each client
    gradients: float  # gradient evaluations, in units of one step's batch
    samples: int
    bytes_up: int
    bytes_down: int
    seconds: float  # spent in rounds, evaluation not counted
    clients: int  # how many answered in this round
    train_loss: float | None  # of the clients' models, mean over local steps; None if nobody came,
    # or if all labels were ignored
    train: Mapping[str, float] = field(default_factory=dict)  # the server's model on training data
    test: Mapping[str, float] = field(default_factory=dict)  # loss and metrics; {} if not measured
    validation: Mapping[str, float] = field(default_factory=dict)  # the same on held-out data
    diagnostics: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def flat(self) -> dict[str, Any]:
        """One level: test_accuracy for test["accuracy"], server_train_loss for train["loss"] (the
        clients' is train_loss), and the diagnostics by their names."""
        row: dict[str, Any] = self.to_dict()
        parts = {"train": "server_train", "test": "test", "validation": "validation"}
        nested = {prefix: row.pop(part) for part, prefix in parts.items()}
        row |= row.pop("diagnostics")
        for prefix, values in nested.items():
            row |= {f"{prefix}_{name}": value for name, value in values.items()}
        return row


class History(list[Record]):
    """The records of a run, in order."""

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row per round (needs pandas)."""
        try:
            import pandas
        except ImportError as cause:
            raise ImportError("History.to_pandas needs pandas: pip install pandas") from cause
        return pandas.DataFrame([record.flat() for record in self])


# As a file: one line of JSON per round, each with a checksum. Files from before there were any are
# read as well; a line without one behind a line with one is damaged.


def to_line(record: Record) -> bytes:
    return (json.dumps(sealed(record.to_dict())) + "\n").encode()


class Lines(NamedTuple):
    """What a file of records holds."""

    records: list[Record]  # from round 1 on, as far as they are whole and follow each other
    raw: list[bytes]  # their lines
    there: int  # how many lines there are, whole or not
    wrong: str | None = None  # what is wrong with the line behind them, if there is one
    torn: bool = False  # a kill has cut the last one short: it does not count as a line


def read(path: Path) -> Lines:
    """All of it, as far as it is whole."""
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
    """The last one that is whole, without a look at the others: a run is watched by it."""
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
