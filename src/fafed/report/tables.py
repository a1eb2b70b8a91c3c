"""The final numbers: one row per curve, for the page and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from fafed.core.run_data import RunData
from fafed.report.curves import Curve, epsilon_of, make_curves
from fafed.report.numbers import NOTHING, Stat, count, duration, number, size
from fafed.report.quantities import (
    SERVER_TRAIN_LOSS,
    TRAIN_LOSS,
    Quantity,
    evaluated,
    training,
)


@dataclass(frozen=True)
class Row:
    """A curve at its last common round. The keys of `final` and `best` are metrics."""

    label: str
    seeds: int
    rounds: int
    train_loss: Stat | None  # of the clients, along their steps
    server_train_loss: Stat | None  # of the server's model
    final: dict[str, Stat]
    best: dict[str, Stat]  # each seed's best round, then the mean over seeds
    gradients: Stat
    bytes_up: Stat
    bytes_down: Stat
    seconds: Stat
    epsilon: float | None = None  # the largest over the seeds; None without differential privacy

    def of(self, quantity: Quantity) -> Stat | None:
        """The final value of a quantity."""
        losses = {"train_loss": self.train_loss, "server_train_loss": self.server_train_loss}
        return losses[quantity.key] if quantity.key in losses else self.final.get(quantity.key)


@dataclass(frozen=True)
class Column:
    """One column of the final table. `stat` is None if the column has no best value."""

    title: str
    text: Callable[[Row], str]
    stat: Callable[[Row], Stat | None] = lambda row: None
    higher: bool = False


def table(runs: Sequence[RunData]) -> list[Row]:
    """One row per curve, in the order of the runs."""
    quantities = evaluated(runs)
    return [_row(curve, quantities) for curve in make_curves(runs)]


def _row(curve: Curve, quantities: Sequence[Quantity]) -> Row:
    last = curve.records[-1]

    def cost(name: str) -> Stat:
        return Stat.from_values([float(record[name]) for record in last])

    final, best = {}, {}
    for quantity in quantities:
        if (stat := _final(curve, quantity)) is not None:
            final[quantity.key] = stat
        if values := curve.series(quantity).finite().values:
            pick = max if quantity.higher else min
            best[quantity.key] = Stat.from_values(
                [pick(seed) for seed in zip(*values, strict=True)]
            )
    return Row(
        label=curve.label,
        seeds=len(curve.runs),
        rounds=curve.rounds,
        train_loss=_final(curve, TRAIN_LOSS),
        server_train_loss=_final(curve, SERVER_TRAIN_LOSS),
        final=final,
        best=best,
        gradients=cost("gradients"),
        bytes_up=cost("bytes_up"),
        bytes_down=cost("bytes_down"),
        seconds=cost("seconds"),
        epsilon=epsilon_of(curve),
    )


def _final(curve: Curve, quantity: Quantity) -> Stat | None:
    """The final value. If a seed diverged it is NaN, however good its last round was."""
    values = curve.series(quantity).values
    if not values:
        return None
    return Stat.from_values([math.nan] * len(curve.runs) if curve.diverged else values[-1])


def columns(
    rows: Sequence[Row], quantities: Sequence[Quantity], losses: Sequence[Quantity]
) -> list[Column]:
    """The columns for these quantities. Only the first one also shows its best round. `losses` are
    the training losses, as `training` orders them. What privacy was spent stands beside what was
    reached."""

    def measured(title: str, quantity: Quantity, get: Callable[[Row], Stat | None]) -> Column:
        def text(row: Row) -> str:
            stat = get(row)
            return NOTHING if stat is None else quantity.spread(stat)

        return Column(title, text, get, quantity.higher)

    def final(quantity: Quantity) -> Callable[[Row], Stat | None]:
        return lambda row: row.of(quantity)

    def best(key: str) -> Callable[[Row], Stat | None]:
        return lambda row: row.best.get(key)

    found = []
    for i, quantity in enumerate(quantities):
        name = quantity.title.split(" = ")[0].lower()
        found.append(measured(f"Final {name}", quantity, final(quantity)))
        if i == 0:
            found.append(measured(f"Best {name}", quantity, best(quantity.key)))
    return [
        *found,
        *([Column("Epsilon", _epsilon)] if any(row.epsilon is not None for row in rows) else []),
        *(measured(f"Final {one.title.lower()}", one, final(one)) for one in losses),
        Column("Seeds", lambda row: count(row.seeds)),
        Column("Rounds", lambda row: count(row.rounds)),
        Column("Gradients", lambda row: count(row.gradients.mean)),
        Column("Sent up", lambda row: size(row.bytes_up.mean)),
        Column("Sent down", lambda row: size(row.bytes_down.mean)),
        Column("Time", lambda row: duration(row.seconds.mean)),
    ]


def _epsilon(row: Row) -> str:
    return "none" if row.epsilon is None else number(row.epsilon)


def winner(stats: Sequence[Stat | None], higher: bool) -> int | None:
    """The index of the winner. It is better than every other by more than the spread over seeds:
    the larger standard deviation of the two. None if there is no winner, or one seed only."""
    known = {i: stat for i, stat in enumerate(stats) if stat is not None}
    finite = {i: stat for i, stat in known.items() if math.isfinite(stat.mean)}
    if len(known) < 2 or not finite:
        return None
    best = (max if higher else min)(finite, key=lambda i: finite[i].mean)
    first = finite.pop(best)
    clear = all(abs(first.mean - other.mean) > spread_of(first, other) for other in finite.values())
    return best if clear and first.n > 1 else None


def spread_of(one: Stat, other: Stat) -> float:
    """The spread over seeds when two curves are compared. Of one seed it is not known."""
    if one.std is None or other.std is None:
        return math.inf
    return max(one.std, other.std)


def rich_table(runs: Sequence[RunData], title: str | None = None) -> Table:
    """The final table for a terminal, with clear winners in bold. The page has more columns."""
    rows = table(runs)
    shown = columns(rows, evaluated(runs)[:1], training(runs)[:1])
    narrow = {"Seeds", "Rounds", "Sent down"}  # left out in a terminal
    if any(column.title == "Epsilon" for column in shown):  # which takes the place of another
        narrow |= {column.title for column in shown if column.title.startswith("Best ")}
    found = [c for c in shown if c.title not in narrow]
    winners: list[Any] = [winner([c.stat(row) for row in rows], c.higher) for c in found]
    seeds = max(row.seeds for row in rows)
    caption = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    if len(rows) > 1:
        bold = "bold: better than all others by more than the spread over seeds"
        caption += f"; {bold}" if seeds > 1 else ": no winner is named"
    result = Table(title=title, caption=caption)
    result.add_column(
        "Algorithm", overflow="fold", min_width=min(10, max(len(r.label) for r in rows))
    )
    for column in found:
        result.add_column(column.title, justify="right")
    for i, row in enumerate(rows):
        # Text, not str: square brackets in a label are not markup.
        cells = [
            Text(column.text(row), style="bold" if best == i else "")
            for column, best in zip(found, winners, strict=True)
        ]
        result.add_row(Text(row.label), *cells)
    return result
