"""The figure of docs/performance.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

AXES = {"clients": "clients", "width": "width of the hidden layer", "steps": "local steps q"}
LINES = {
    "ours": ("fafed, FedAvg", "#0072b2"),
    "ours-fafed": ("fafed, FAFED", "#d55e00"),
    "plain-1": ("plain loop, FedAvg", "#777777"),
}


def draw(growth: dict[str, Any], path: Path) -> None:
    """Time above, on logarithmic axes; memory below."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    grid = figure.subplots(2, len(growth), squeeze=False)
    for column, (series, points) in enumerate(growth.items()):
        for row, (key, label) in enumerate(
            [("seconds", "seconds a round"), ("memory", "peak memory, MiB")]
        ):
            axes = grid[row][column]
            for who, (name, colour) in LINES.items():
                known = [(int(n), c[who].get(key)) for n, c in points.items() if who in c]
                known = [(n, value) for n, value in known if value]
                if known:
                    axes.plot(*zip(*known, strict=True), "o-", color=colour, label=name, ms=4)
            axes.set_xscale("log")
            axes.grid(alpha=0.3)
            if key == "seconds":
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            if row:
                axes.set_xlabel(AXES[series])
            if not column:
                axes.set_ylabel(label)
    grid[0][0].legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "fafed"}):  # the same bytes from the same numbers
        figure.savefig(path, metadata={"Date": None})
