"""The data that the page's script draws, as plain JSON values."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fafed.core.run_data import RunData, show
from fafed.files import Json
from fafed.report.curves import Curve, differing
from fafed.report.numbers import NOTHING
from fafed.report.palette import style
from fafed.report.quantities import AXES, Quantity
from fafed.report.target import Target

MOST_POINTS = 2000  # per line; a screen has fewer pixels
MOST_CLIENTS = 200  # columns of a client x class picture


def thin(length: int, most: int = MOST_POINTS) -> list[int]:
    """At most `most` evenly spaced indices, the first and the last among them."""
    if length <= most:
        return list(range(length))
    return [round(i * (length - 1) / (most - 1)) for i in range(most)]


def curve_styles(curves: Sequence[Curve]) -> list[dict[str, Json]]:
    styles = (style(i) for i in range(len(curves)))
    return [
        {"label": curve.label, "hue": hue, "dash": dash}
        for curve, (hue, dash) in zip(curves, styles, strict=True)
    ]


class Charts:
    """Collects charts. Costs that several charts share are stored once."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.curves = curves
        self.grids: list[dict[str, list[float]]] = []
        self.charts: list[dict[str, Json]] = []
        self.thinned = False

    def add(self, quantity: Quantity, target: Target | None = None) -> int | None:
        """The number of the new chart; None if there is nothing to draw."""
        drawn: list[dict[str, Json]] = []
        for i, curve in enumerate(self.curves):
            series = curve.series(quantity).finite()
            if not series.values:
                continue
            keep = thin(len(series.values))
            self.thinned |= len(keep) < len(series.values)
            grid = {axis: _pick(column, keep) for axis, column in series.costs.items()}
            line: dict[str, Json] = {
                "curve": i,
                "grid": self._grid(grid),
                "mean": _pick(series.mean, keep),
            }
            if len(curve.runs) > 1:
                line |= {"low": _pick(series.low, keep), "high": _pick(series.high, keep)}
            drawn.append(line)
        if not drawn:
            return None
        self.charts.append(
            {
                "key": quantity.key,
                "share": quantity.share,
                "logarithmic": quantity.logarithmic,
                "target": target.value if target else None,
                "series": drawn,
            }
        )
        return len(self.charts) - 1

    def _grid(self, grid: dict[str, list[float]]) -> int:
        if grid not in self.grids:
            self.grids.append(grid)
        return self.grids.index(grid)


def _pick(values: Sequence[float], keep: Sequence[int]) -> list[float]:
    # Six digits are more than a pixel can show. All digits would triple the size of the file.
    return [float(f"{values[i]:.6g}") for i in keep]


def axes() -> dict[str, Json]:
    return {key: {"title": axis.title, "unit": axis.unit} for key, axis in AXES.items()}


def heat_maps(curves: Sequence[Curve]) -> list[dict[str, Json]]:
    """One client x class picture for each way in which the data were divided.

    Seeds that divide the data differently are represented by the first of them.
    """
    first: dict[str, tuple[RunData, dict[str, object]]] = {}
    for curve in curves:
        data = {key: v for key, v in curve.settings.items() if key.startswith("data.")}
        for run in curve.runs:
            if run.counts:
                first.setdefault(repr(sorted((k, show(v)) for k, v in data.items())), (run, data))
    keys = differing([data for _, data in first.values()])
    return [
        _heat_map(run, ", ".join(f"{key}={show(data.get(key, NOTHING))}" for key in keys))
        for run, data in first.values()
    ]


def _heat_map(run: RunData, title: str) -> dict[str, Json]:
    counts = run.counts or []
    keep = thin(len(counts), MOST_CLIENTS)
    width = max(len(row) for row in counts)
    rows = [[int(n) for n in row] + [0] * (width - len(row)) for row in counts]
    names = list(run.classes or [])
    return {
        "title": title,
        "seed": run.config.get("seed"),
        "clients": keep,
        "total_clients": len(counts),
        "classes": [*names[:width], *(f"class {i}" for i in range(len(names), width))],
        "counts": [rows[i] for i in keep],
        "by_client": [sum(rows[i]) for i in keep],
        "by_class": [sum(column) for column in zip(*rows, strict=True)],
    }


def to_json(value: object) -> str:
    """JSON that is safe inside a <script> element, whatever its strings contain."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
