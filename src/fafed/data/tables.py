"""Tables: how the columns of a .csv or .parquet file become inputs and targets.

Without rules the target is the column `target`, or else the last one. All other columns of numbers
are the inputs, and gaps are refused. With rules, which are a table of a TOML file:

    target = "disease"
    classes = ["no", "yes"]            # values of the target, in the order of their numbers
    inputs = ["age", "sex", "pain"]    # columns, in this order; all others are left out
    missing = "mean"                   # "refuse", "drop" the row, or "mean" of the file's column
    fill = { chol = 240.0 }            # a number for the gaps of one column, before `missing`
    scale = { age = [54.0, 9.0] }      # centre and width: an input is (value - centre) / width
    [categories]
    pain = ["none", "typical"]         # each value becomes a column of 0 and 1

A gap is an empty field, or one of ?, NA, N/A, NaN, null. A gap in a category gives zeros in all of
its columns, unless `missing` is "refuse" or "drop". A category that is not listed is an error: all
clients must have the same columns. A row without a target is refused, and left out with "drop" and
"mean".
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fafed.core.extras import require
from fafed.errors import ConfigError, DataError, nearest

GAPS = {"", "?", "na", "n/a", "nan", "null"}
MISSING = ("refuse", "drop", "mean")
Column = npt.NDArray[np.float64]


class Read(NamedTuple):
    """The inputs and targets of a table, the names of the inputs, and what a reader should know."""

    inputs: Any
    targets: Any
    columns: tuple[str, ...]
    notes: tuple[str, ...] = ()  # what became of gaps and of columns that were not used


@dataclass(frozen=True)
class Table:
    """The rules. Without `inputs` there are none."""

    target: str = ""
    inputs: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: str = "refuse"
    fill: Mapping[str, float] = field(default_factory=dict)
    scale: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        known = [one.name for one in fields(cls)]
        for name in content:
            if name not in known:
                raise ConfigError(f"table.{name}: no such key; {nearest(name, known)}")
        texts = {"inputs": content.get("inputs", []), "classes": content.get("classes", [])}
        categories = content.get("categories", {})
        tables = [content.get(name, {}) for name in ("categories", "fill", "scale")]
        if not all(isinstance(one, Mapping) for one in tables):
            raise ConfigError("table: categories, fill and scale are tables: column = ...")
        texts |= {f"categories.{name}": values for name, values in categories.items()}
        for name, values in texts.items():
            if not isinstance(values, list | tuple) or len(set(map(str, values))) < len(values):
                raise ConfigError(
                    f"table.{name} = {values!r}: it must be a list that names each once"
                )
        lists = {name: tuple(map(str, values)) for name, values in texts.items()}
        found = cls(
            str(content.get("target", "")),
            lists["inputs"],
            lists["classes"],
            {name: lists[f"categories.{name}"] for name in categories},
            content.get("missing", "refuse"),
            content.get("fill", {}),
            content.get("scale", {}),
        )
        found._check()
        return found

    def _check(self) -> None:
        if not self:
            return
        if not self.target or not self.inputs or self.target in self.inputs:
            raise ConfigError(
                f"table: target = {self.target!r} and inputs = {list(self.inputs)}: name the "
                "target, and at least one other column as an input"
            )
        if self.missing not in MISSING:
            raise ConfigError(
                f"table.missing = {self.missing!r}: it must be one of {', '.join(MISSING)}"
            )
        for name in (*self.categories, *self.fill, *self.scale):
            if name not in self.inputs:
                raise ConfigError(
                    f"table: {name!r} is not among the inputs; add it, or take it out"
                )
        for name, value in self.fill.items():
            if name in self.categories or isinstance(value, bool | str):
                raise ConfigError(
                    f"table.fill: {name} = {value!r}: it must be a number, and "
                    "only columns of numbers are filled"
                )
        for name, pair in self.scale.items():
            good = isinstance(pair, list | tuple) and len(pair) == 2
            good = good and name not in self.categories
            if not good or not all(type(n) in (int, float) for n in pair) or pair[1] <= 0:
                raise ConfigError(
                    f"table.scale: {name} = {pair!r}: it must be [centre, width] with a width "
                    "above 0, for a column of numbers"
                )

    def __bool__(self) -> bool:
        return self != Table()

    def columns(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(
            column
            for name in self.inputs
            for column in (
                [f"{name}={value}" for value in self.categories[name]]
                if name in self.categories
                else [name]
            )
        )

    def numbers(self) -> tuple[bool, ...]:
        """Which inputs are columns of numbers, and not of a category; () without rules."""
        return tuple(
            name not in self.categories
            for name in self.inputs
            for _ in self.categories.get(name, ("",))
        )

    def read(self, path: Path, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Read:
        """Apply the rules to the text of a table."""
        if absent := [name for name in (self.target, *self.inputs) if name not in names]:
            raise DataError(
                f"{path} has no column {', '.join(map(repr, absent))}; it has {list(names)}: "
                "rename them, or correct the rules of the table",
                fault="columns",
            )
        at = {name: i for i, name in enumerate(names)}
        texts = {
            name: [row[at[name]].strip() for row in rows] for name in (self.target, *self.inputs)
        }
        gaps = {
            name: np.array([text.lower() in GAPS for text in column], bool)
            for name, column in texts.items()
        }
        open_ = {n: gap for n, gap in gaps.items() if n not in self.fill}
        if self.missing == "refuse" and (some := [n for n, gap in open_.items() if gap.any()]):
            raise DataError(
                f"{path}: column {some[0]!r} has gaps ({int(open_[some[0]].sum())}): fill them, or "
                "give the table missing = 'drop' or 'mean'",
                fault="gaps",
            )
        dropped = gaps[self.target].copy()
        if self.missing == "drop":
            for gap in open_.values():
                dropped |= gap
        notes = [f"rows with gaps, left out: {dropped.sum()}"] if dropped.any() else []
        kept = np.flatnonzero(~dropped)
        if not len(kept):
            raise DataError(f"{path} has no row without gaps: fill some", fault="empty")
        texts = {name: [column[i] for i in kept] for name, column in texts.items()}
        gaps = {name: gap[kept] for name, gap in gaps.items()}
        filled = [f"{name} {gaps[name].sum()}" for name in self.inputs if gaps[name].any()]
        notes += [f"gaps, filled by the rules: {', '.join(filled)}"] if filled else []
        columns = [self._input(path, name, texts[name], gaps[name]) for name in self.inputs]
        inputs = np.concatenate(columns, axis=1).astype(np.float32)
        return Read(inputs, self._targets(path, texts[self.target]), self.columns(), tuple(notes))

    def _input(self, path: Path, name: str, texts: list[str], gaps: npt.NDArray[Any]) -> Column:
        if name in self.categories:
            return self._one_hot(path, name, texts, gaps)
        values = np.full(len(texts), np.nan)
        present = np.flatnonzero(~gaps)
        numbers = numbers_in([texts[i] for i in present])
        if numbers is None:
            raise DataError(
                f"{path}: column {name!r} holds text: list its values in table.categories, or "
                "leave it out of inputs",
                fault="text",
            )
        values[present] = numbers
        if gaps.any():
            if name not in self.fill and not len(present):
                raise DataError(
                    f"{path}: column {name!r} has no value, so there is no mean: give it a number "
                    "in table.fill, or leave it out of inputs",
                    fault="gaps",
                )
            values[gaps] = self.fill[name] if name in self.fill else values[present].mean()
        centre, width = self.scale.get(name, (0.0, 1.0))
        return (values[:, None] - centre) / width

    def _one_hot(self, path: Path, name: str, texts: list[str], gaps: npt.NDArray[Any]) -> Column:
        known = {_value(value): i for i, value in enumerate(self.categories[name])}
        found = np.zeros((len(texts), len(known)))
        for row, text in enumerate(texts):
            if gaps[row]:
                continue
            if _value(text) not in known:
                raise DataError(
                    f"{path}: column {name!r} holds {text!r}, which is not among its categories "
                    f"{list(self.categories[name])}: add it everywhere, or correct the table",
                    fault="categories",
                )
            found[row, known[_value(text)]] = 1
        return found

    def _targets(self, path: Path, texts: list[str]) -> Any:
        if not self.classes:
            numbers = numbers_in(texts)
            if numbers is None:
                raise DataError(
                    f"{path}: the target {self.target!r} holds text: list its values in "
                    "table.classes",
                    fault="target",
                )
            return numbers
        known = {_value(value): i for i, value in enumerate(self.classes)}
        for text in texts:
            if _value(text) not in known:
                raise DataError(
                    f"{path}: the target {self.target!r} holds {text!r}, which is not among the "
                    f"classes {list(self.classes)}: correct one of them",
                    fault="target",
                )
        return np.array([known[_value(text)] for text in texts], np.int64)


def _value(text: str) -> str | float:
    """1, 1.0 and 1.00 are the same value."""
    try:
        return float(text)
    except ValueError:
        return text


def read_csv(path: Path, rules: Table) -> Read:
    """A table with a header. Without rules, a column is numeric if all its fields are numbers."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read {path}: {error}; save it as a UTF-8 table", fault="unreadable"
        ) from error
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise DataError(
                f"{path}: row {number} has {len(row)} fields, the header has {len(names)}: "
                "give every row one field per column",
                fault="unreadable",
            )
    if rules and rows:
        return rules.read(path, [name.strip() for name in names], rows)
    numeric: dict[str, Any] = {}
    for name, column in zip(names, zip(*rows, strict=True), strict=False):
        texts = [text.strip() for text in column]
        gaps = sum(not text for text in texts)
        values = numbers_in([text for text in texts if text])
        if values is not None and gaps < len(texts):
            if gaps:
                raise _gaps(path, name, gaps)
            numeric[name] = values
    if not rows:
        raise DataError(f"{path} has no examples: give it some or leave it out", fault="empty")
    return _without_rules(path, names, numeric)


def read_parquet(path: Path, rules: Table) -> Read:
    require(str(path), "parquet", "pyarrow.parquet")
    arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    try:
        table = parquet.read_table(path)
    except ValueError as error:  # pyarrow's error for a damaged file
        raise DataError(
            f"cannot read {path}: {error}; get a fresh copy of it", fault="unreadable"
        ) from error
    names, is_ = table.column_names, arrow.types
    if rules and table.num_rows:
        wanted = [name for name in names if name in (rules.target, *rules.inputs)]
        columns = [table.column(name).to_pylist() for name in wanted]
        rows = [["" if v is None else _text(v) for v in row] for row in zip(*columns, strict=True)]
        return rules.read(path, wanted, rows)
    numeric: dict[str, Any] = {}
    for name, column in zip(names, table.columns, strict=True):
        kind = column.type
        if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_boolean(kind):
            if column.null_count:
                raise _gaps(path, name, column.null_count)
            numeric[name] = np.asarray(column)
    return _without_rules(path, names, numeric)


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _gaps(path: Path, name: str, gaps: int) -> DataError:
    return DataError(
        f"{path}: column {name!r} has gaps ({gaps}): fill them, or give rules for the table with "
        "`fill` or `missing`",
        fault="gaps",
    )


def numbers_in(texts: Sequence[str]) -> Any:
    """The texts as an array of integers or floats; None if they are not numbers."""
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(text) for text in texts])
        except (ValueError, OverflowError):
            continue
    return None


def _without_rules(path: Path, names: Sequence[str], numeric: dict[str, Any]) -> Read:
    """The target is the column `target`, or else the last one."""
    target = "target" if "target" in names else names[-1] if names else "target"
    if target not in numeric or len(numeric) < 2:
        raise DataError(
            f"{path} needs a numeric target and at least one other numeric column, has "
            f"{list(names)}, of which {list(numeric)} are numeric, and takes {target!r} as the "
            "target; columns of text need rules, see Tables in docs/data.md",
            fault="target",
        )
    targets = numeric.pop(target)
    inputs = np.stack([np.asarray(c, np.float32) for c in numeric.values()], axis=1)
    text = [name for name in names if name not in numeric and name != target]
    notes = (f"columns with text, left out: {', '.join(text)}",) if text else ()
    return Read(inputs, targets, tuple(numeric), notes)
