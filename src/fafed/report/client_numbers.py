"""The clients one by one: how the model does on the test data of each, as a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from fafed.core.records import higher_is_better
from fafed.report.curves import Curve
from fafed.report.numbers import Stat, count
from fafed.report.palette import style
from fafed.report.quantities import Quantity
from fafed.report.sections import html_table, swatch

PARTS = {
    "clients_test": "The model of the last measured round, on each client's own test data",
    "personalised": "The same after some local steps of each client on its own training data",
}
STATISTICS = {
    "mean": "Mean",
    "weighted": "Mean weighted by examples",
    "std": "Standard deviation",
    "worst": "Worst",
    "worst_decile": "Worst decile",
}
WIDTH, ROW, LEFT, RIGHT = 720, 30, 180, 20  # of the figure, in pixels


def section(curves: Sequence[Curve]) -> str:
    """Empty if no client has test data of its own."""
    tables = [text for part in PARTS if (text := _table(curves, part))]
    if not tables:
        return ""
    return (
        '<section id="client-numbers"><h2>Client by client</h2>'
        '<p class="muted small">Every client counts the same in the mean, and by its test examples '
        "in the weighted mean. The standard deviation is over the clients. Worst is the lowest "
        "value where more is better, such as an accuracy, and the highest otherwise, such as a "
        "loss. Worst decile is the mean over the worst tenth of the clients, at least one. With "
        "several seeds, each cell is the mean ± standard deviation over seeds.</p>"
        f"{''.join(tables)}{''.join(_figure(curves, part) for part in PARTS)}</section>"
    )


def last_measured(curve: Curve, part: str) -> list[dict[str, Any]]:
    """The records of the last common round in which every seed has these numbers."""
    return next((row for row in reversed(curve.records) if all(r.get(part) for r in row)), [])


def _metrics(curves: Sequence[Curve], part: str) -> list[str]:
    """The names, those for which more is better first, and the loss last."""
    names = dict.fromkeys(
        name for curve in curves for r in last_measured(curve, part) for name in r[part]
    )
    return sorted(names, key=lambda name: (name == "loss", not higher_is_better(name)))


def _quantity(curves: Sequence[Curve], part: str, name: str) -> Quantity:
    higher = higher_is_better(name)
    found = [
        float(r[part][name]["mean"])
        for curve in curves
        for r in last_measured(curve, part)
        if name in r[part]
    ]
    share = higher and all(0 <= value <= 1 for value in found if math.isfinite(value))
    return Quantity(name, name, lambda record: None, higher=higher, share=share)


def _table(curves: Sequence[Curve], part: str) -> str:
    body = []
    for name in _metrics(curves, part):
        quantity = _quantity(curves, part, name)
        for i, curve in enumerate(curves):
            rows = [r[part][name] for r in last_measured(curve, part) if name in r[part]]
            if not rows:
                continue
            cells = [
                quantity.spread(Stat.from_values([float(row[key]) for row in rows]))
                for key in STATISTICS
            ]
            cells.append(count(sum(row["clients"] for row in rows) / len(rows)))
            texts = "".join(f"<td>{escape(text)}</td>" for text in [name, *cells])
            body.append(f'<tr><th scope="row">{swatch(i)}{escape(curve.label)}</th>{texts}</tr>')
    if not body:
        return ""
    head = ["Algorithm", "Metric", *STATISTICS.values(), "Clients"]
    return f"<h3>{escape(PARTS[part])}</h3>{html_table(head, body, 'wide names', PARTS[part])}"


def _figure(curves: Sequence[Curve], part: str) -> str:
    """One dot per client, one line of dots per curve, for the first metric."""
    name = next(iter(_metrics(curves, part)), None)
    if name is None:
        return ""
    found = {i: _values(curve, part, name) for i, curve in enumerate(curves)}
    found = {i: values for i, values in found.items() if values}
    if not found:
        return ""
    quantity = _quantity(curves, part, name)
    low = min(min(values) for values in found.values())
    high = max(max(values) for values in found.values())
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / span

    marks = []
    for row, (i, values) in enumerate(found.items()):
        y, (hue, _) = ROW * row + ROW / 2, style(i)
        mean = sum(values) / len(values)
        label = curves[i].label
        label = label if len(label) <= 24 else f"{label[:23]}…"
        marks.append(f'<text x="0" y="{y + 4:g}" fill="var(--ink)">{escape(label)}</text>')
        marks += [
            f'<circle cx="{place(v):.1f}" cy="{y:g}" r="4" fill="var(--hue-{hue})" '
            'fill-opacity="0.45"/>'
            for v in values
        ]
        marks.append(
            f'<line x1="{place(mean):.1f}" x2="{place(mean):.1f}" y1="{y - 11:g}" y2="{y + 11:g}" '
            f'stroke="var(--hue-{hue})" stroke-width="2"/>'
        )
    height = ROW * len(found)
    ends = [(LEFT, low, "start"), (WIDTH - RIGHT, high, "end")]
    marks += [
        f'<text x="{x}" y="{height + 16}" fill="var(--muted)" text-anchor="{anchor}">'
        f"{escape(quantity.text(value))}</text>"
        for x, value, anchor in ends
    ]
    title = f"{name} of each client"
    return (
        f'<figure><figcaption class="muted small">{escape(PARTS[part])}: {escape(title)}. '
        "One dot per client of the first seed, and a line at their mean.</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height + 22}" width="{WIDTH}" font-size="12" role="img" '
        f'aria-label="{escape(title)}">{"".join(marks)}</svg></figure>'
    )


def _values(curve: Curve, part: str, name: str) -> list[float]:
    first = next(iter(last_measured(curve, part)), {})
    values = (first.get("client_values") or {}).get(part, {}).get(name, [])
    return [float(value) for value in values if math.isfinite(value)]
