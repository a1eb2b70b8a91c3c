"""The result of an experiment: settings, tables, claims, and the lines of its figure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fafed.report.numbers import NOTHING, number
from studies import markdown

if TYPE_CHECKING:
    import rich.table

RESULTS = Path(__file__).parent / "results"  # the findings of docs/theory.md as JSON
DIGITS = 12  # kept in files: the last ones may differ from machine to machine


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    digits: int = 4  # significant ones

    def cells(self, row: Sequence[Any]) -> list[str]:
        return [shown(value, self.digits) for value in row]

    def markdown(self) -> str:
        head = f"**{self.title}.** {self.note}".rstrip()
        return f"{head}\n\n{markdown.table(self.columns, map(self.cells, self.rows))}"

    def terminal(self) -> rich.table.Table:
        from rich.table import Table as Drawn

        drawn = Drawn(title=self.title, caption=self.note or None)
        for k, column in enumerate(self.columns):
            words = all(isinstance(row[k], str) for row in self.rows)
            drawn.add_column(column, justify="left" if words else "right", overflow="fold")
        for row in self.rows:
            drawn.add_row(*self.cells(row))
        return drawn

    def plain(self) -> dict[str, Any]:
        rows = [[_plain(value) for value in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows}


@dataclass(frozen=True)
class Claim:
    """A claim about the methods, and whether the measurements support it."""

    says: str
    holds: bool
    measured: str
    but: str = ""  # the limits within which it holds; empty if there are none

    @property
    def verdict(self) -> str:
        return "does not hold" if not self.holds else "holds within limits" if self.but else "holds"

    def markdown(self) -> str:
        evidence = " ".join(filter(None, [self.measured, self.but]))
        return f"- *{self.says}* **{self.verdict.capitalize()}.** {evidence}"


@dataclass(frozen=True)
class Finding:
    name: str
    title: str
    about: str  # what was run, in a few sentences
    settings: dict[str, Any]
    tables: dict[str, Table]
    claims: list[Claim]
    lines: dict[str, Any] = field(default_factory=dict)  # for the figure only

    def plain(self) -> dict[str, Any]:
        return {
            "experiment": self.name,
            "settings": {key: _plain(value) for key, value in self.settings.items()},
            "tables": {key: table.plain() for key, table in self.tables.items()},
            "claims": [{"says": c.says, "verdict": c.verdict} for c in self.claims],
        }

    def json(self) -> str:
        return json.dumps(self.plain(), indent=1) + "\n"

    def markdown(self, figures: Sequence[str]) -> str:
        parts = [f"## {self.title}", f"`python -m studies.theory {self.name}`", self.about]
        parts += [f"![{self.title}]({figure})" for figure in figures]
        parts.append("\n".join(claim.markdown() for claim in self.claims))
        parts += [table.markdown().rstrip() for table in self.tables.values()]
        return "\n\n".join(parts) + "\n"


def shown(value: Any, digits: int = 4) -> str:
    """A table's cell."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return short(value, digits)
        case _:
            return str(value)


def short(value: float, digits: int = 4) -> str:
    """A number as people read it."""
    if value == 0:
        return "0"
    if math.isfinite(value) and float(value).is_integer() and abs(value) < 1e7:
        return f"{value:,.0f}"
    if math.isfinite(value) and 1e-4 <= abs(value) < 1e7:
        return f"{float(f'{value:.{digits}g}'):,.10g}"
    return number(value)


def span(values: Sequence[float], digits: int = 3) -> str:
    """From the least to the greatest."""
    low, high = short(min(values), digits), short(max(values), digits)
    return low if low == high else f"{low} to {high}"


def _plain(value: Any) -> Any:
    """JSON's own types; numbers cut to DIGITS significant digits."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return [_plain(part) for part in value]
