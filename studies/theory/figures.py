"""Helpers for the figures of all experiments: colours and fonts of the reports, SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fafed.report.palette import LIGHT
from fafed.report.static import DASHES, apart, both, styled
from studies.theory.findings import Finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREEN, PINK, OCHRE, INK = LIGHT.hues
MUTED = LIGHT.muted
HUES = {"FedAvg": INK, "STEM": GREEN, "FAFED": BLUE}
DASH, DOT = DASHES["dash"], DASHES["dot"]

Draw = Callable[[Finding], "dict[str, Figure]"]


def write_figures(draw: Draw, finding: Finding, folder: Path) -> list[Path]:
    """Each figure as SVG and PNG; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        figures = draw(finding)
        return [path for name, one in figures.items() for path in both(one, folder / name)]


def panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure and the list of its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06, wspace=0.05, hspace=0.06)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axis in axes:
        axis.tick_params(which="both", length=0)
        axis.set_axisbelow(True)
    return figure, axes


def name_axes(axis: Axes, title: str, x: str, y: str = "") -> None:
    axis.set_title(title)
    axis.set_xlabel(x)
    if y:
        axis.set_ylabel(y)


def note(axis: Axes, text: str, at: tuple[float, float], colour: str = MUTED, **how: Any) -> None:
    """Write text at a point of the data."""
    axis.annotate(text, at, color=colour, **{"fontsize": 8, "va": "center", **how})


def label_ends(
    axis: Axes, labels: Sequence[tuple[str, float, str]], gap: float = 0.075, x: float = 1.02
) -> None:
    """(text, height in data, colour) beside the right edge, moved apart where they overlap."""
    to_axes = axis.transData + axis.transAxes.inverted()
    low = axis.get_xlim()[1]
    ends = sorted((float(to_axes.transform((low, y))[1]), text, hue) for text, y, hue in labels)
    for place, (_, text, hue) in zip(apart([e[0] for e in ends], gap), ends, strict=True):
        axis.annotate(
            text, (x, place), xycoords="axes fraction", color=hue, fontsize=8, va="center"
        )


def log_axes(axis: Axes, ticks: Sequence[float], steps: bool = True) -> None:
    """Logarithmic both ways, with plain numbers at `ticks` of x (`steps`: at every second one)."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.set_yscale("log")
    chosen = list(ticks)[:: 2 if steps and len(ticks) > 4 else 1]
    axis.xaxis.set_major_locator(FixedLocator(chosen))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    low, high = axis.get_ylim()
    subs = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axis.yaxis.set_major_locator(LogLocator(subs=subs))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: _count(v)))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _count(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:g}"
