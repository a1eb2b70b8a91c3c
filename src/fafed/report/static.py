"""Static pictures (SVG, PNG) of the same curves, for papers and README files.

matplotlib is imported where it is used, because it is slow to load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fafed.core.run_data import RunData
from fafed.report.curves import Curve, make_curves
from fafed.report.palette import LIGHT, style
from fafed.report.payload import heat_maps, thin
from fafed.report.quantities import (
    AXES,
    TRAINING,
    Axis,
    Quantity,
    evaluated,
    find_axis,
    find_quantity,
    primary,
    training,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LABELS = 14  # more labels do not fit beside the lines, so a legend replaces them
LONGEST_LABEL = 36
DASHES = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1.2, 1.6))}


@contextmanager
def styled() -> Iterator[None]:
    import matplotlib

    settings: dict[Any, Any] = {
        "font.size": 9,
        "axes.edgecolor": LIGHT.muted,
        "axes.labelcolor": LIGHT.muted,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlecolor": LIGHT.ink,
        "grid.color": LIGHT.grid,
        "xtick.color": LIGHT.muted,
        "ytick.color": LIGHT.muted,
        "text.color": LIGHT.ink,
        "text.parse_math": False,  # a dollar sign in a name is not mathematics
        "svg.hashsalt": "fafed",  # the same runs give the same file
    }
    with matplotlib.rc_context(settings):
        yield


def figure(
    runs: Sequence[RunData],
    path: Path,
    metric: str | None = None,
    axis: str = "rounds",
) -> Path:
    """Draw the training loss and a metric side by side. The suffix of `path` decides the format.

    `metric` is a name in the records' test results, or validation_NAME, or a diagnostic. By default
    it is the quantity that ranks curves. `axis` is one of rounds, gradients, bytes and seconds.
    """
    quantity = find_quantity(runs, metric) if metric else primary(runs)
    loss = training(runs)[0]
    panels = [quantity] if quantity in TRAINING else [loss, quantity]
    with styled():
        save(_draw(make_curves(runs), panels, find_axis(axis)), [path])
    return path


def write_figures(runs: Sequence[RunData], folder: Path) -> list[Path]:
    """Write curves-AXIS, one picture for each other metric, and clients, as SVG and PNG."""
    curves = make_curves(runs)
    measured, losses = evaluated(runs), training(runs)
    written: list[Path] = []
    with styled():
        for axis in AXES.values():
            picture = _draw(curves, [losses[0], *measured[:1]], axis)
            written += both(picture, folder / f"curves-{axis.key}")
        for quantity in [*measured[1:], *losses[1:]]:
            picture = _draw(curves, [quantity], AXES["rounds"])
            written += both(picture, folder / f"{_file_name(quantity.title)}-rounds")
        for i, heat in enumerate(heat_maps(curves)):
            written += both(_draw_clients(heat), folder / f"clients{f'-{i + 1}' if i else ''}")
    return written


def _file_name(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.split(" = ")[0].lower())


def both(picture: Figure, stem: Path) -> list[Path]:
    return save(picture, [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")])


def save(picture: Figure, paths: list[Path]) -> list[Path]:
    for path in paths:
        # Without the date, drawing the same runs again changes nothing.
        metadata = {"Date": None} if path.suffix == ".svg" else None
        picture.savefig(path, dpi=200, metadata=metadata, facecolor=LIGHT.background)
    return paths


def _draw(curves: Sequence[Curve], quantities: Sequence[Quantity], axis: Axis) -> Figure:
    # Figure itself, not pyplot: no display, no global state, nothing to close.
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8, 3.4) if len(quantities) > 1 else (6, 3.4), layout="constrained")
    panels = picture.subplots(1, len(quantities), squeeze=False)[0]
    labelled = []
    for panel, quantity in zip(panels, quantities, strict=True):
        _panel(panel, curves, quantity, axis)
        labelled = [line for line in panel.get_lines() if len(line.get_xdata())]
    if len(labelled) == len(curves) <= MOST_LABELS and _end_together(labelled):
        _label_ends(panels[-1], labelled)
    else:
        handles = panels[0].get_lines()
        picture.legend(
            handles=handles, loc="outside lower left", ncols=4, frameon=False, fontsize=7.5
        )
    return picture


def _panel(panel: Axes, curves: Sequence[Curve], quantity: Quantity, axis: Axis) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    for i, curve in enumerate(curves):
        series = curve.series(quantity).finite()
        keep = thin(len(series.values))
        x = [series.costs[axis.key][k] for k in keep]
        hue, dash = style(i)
        colour = LIGHT.hues[hue]
        if len(curve.runs) > 1:
            low, high = [series.low[k] for k in keep], [series.high[k] for k in keep]
            panel.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
        panel.plot(
            x,
            [series.mean[k] for k in keep],
            color=colour,
            linestyle=DASHES[dash],
            linewidth=1.7,
            marker="o" if len(x) == 1 else "",
            markersize=4,
            label=_clip(curve.label),
        )
    panel.set_title(quantity.title)
    panel.set_xlabel(axis.title.split(" (")[0])
    panel.xaxis.set_major_locator(MaxNLocator(6))
    panel.xaxis.set_major_formatter(EngFormatter(unit=axis.unit, sep=" " if axis.unit else ""))
    panel.set_xlim(left=0)
    panel.tick_params(length=0)
    panel.set_axisbelow(True)
    if quantity.share:
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))


def _clip(label: str) -> str:
    # A leading underscore would hide a line from the legend.
    label = f" {label}" if label.startswith("_") else label
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"


def _label_ends(panel: Axes, lines: Sequence[Any]) -> None:
    """Write each curve's name beside its end, moved up or down where names would overlap."""
    low, high = panel.get_ylim()
    ends = [((float(line.get_ydata()[-1]) - low) / (high - low or 1), line) for line in lines]
    ends.sort(key=lambda end: end[0])
    places = apart([end[0] for end in ends], gap=min(0.062, 1 / len(ends)))
    for (_, line), place in zip(ends, places, strict=True):
        panel.annotate(
            line.get_label(),
            xy=(float(line.get_xdata()[-1]), float(line.get_ydata()[-1])),
            xytext=(1.06, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            color=line.get_color(),
            arrowprops={
                "arrowstyle": "-",
                "color": line.get_color(),
                "linewidth": 0.6,
                "linestyle": line.get_linestyle(),
                "shrinkA": 1,
                "shrinkB": 1,
                "relpos": (0, 0.5),
            },
        )


def _end_together(lines: Sequence[Any]) -> bool:
    """Whether labels at the right edge are beside the lines they name."""
    ends = [float(line.get_xdata()[-1]) for line in lines]
    return min(ends) >= 0.93 * max(ends)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The nearest ascending positions at least `gap` apart, within [0, 1] if they fit."""
    result: list[float] = []
    for place in places:
        result.append(max(place, result[-1] + gap) if result else place)
    ceiling = 1.0
    for i in reversed(range(len(result))):
        result[i] = min(result[i], ceiling)
        ceiling = result[i] - gap
    return result


def _draw_clients(heat: dict[str, Any]) -> Figure:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    counts, classes = heat["counts"], heat["classes"]
    height = min(12.0, max(2.6, 0.24 * len(classes) + 1.2))
    picture = Figure(figsize=(8, height), layout="constrained")
    grid = picture.add_gridspec(2, 2, width_ratios=(6, 1), height_ratios=(1, 5))
    panel = picture.add_subplot(grid[1, 0])
    shades = LinearSegmentedColormap.from_list("counts", [LIGHT.background, LIGHT.hues[0]])
    panel.imshow(list(zip(*counts, strict=True)), aspect="auto", cmap=shades, vmin=0)
    panel.set_yticks(range(len(classes)), classes, fontsize=8 if len(classes) < 40 else 5)
    step = max(1, len(counts) // 20)
    panel.set_xticks(range(0, len(counts), step), heat["clients"][::step])
    panel.set_xlabel("Client")
    panel.grid(False)
    panel.tick_params(length=0)
    above = picture.add_subplot(grid[0, 0], sharex=panel)
    above.bar(range(len(counts)), heat["by_client"], color=LIGHT.hues[0], alpha=0.55)
    above.tick_params(labelbottom=False, length=0)
    above.set_title("Examples by client and class")
    beside = picture.add_subplot(grid[1, 1], sharey=panel)
    beside.barh(range(len(classes)), heat["by_class"], color=LIGHT.hues[0], alpha=0.55)
    beside.tick_params(labelleft=False, length=0)
    beside.set_xlabel("Total")
    beside.grid(False)
    beside.locator_params(axis="x", nbins=2)
    return picture
