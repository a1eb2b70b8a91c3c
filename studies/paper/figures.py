"""The figures of docs/paper.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fafed.report.palette import LIGHT
from fafed.report.static import DASHES, save, styled
from studies.paper.findings import (
    ACCURACY,
    CONTROL,
    FAFED,
    Findings,
    Runs,
    level,
    perplexity,
    title,
)
from studies.paper.ledger import Outcome
from studies.paper.verdicts import WORDS
from studies.theory.figures import name_axes, note, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREEN, PINK, OCHRE, INK = LIGHT.hues
MUTED = LIGHT.muted
DASH_DOT = (0, (6, 1.5, 1.2, 1.5))
STYLES = {  # hue and dash: in print without colours the dash tells the lines apart
    "FAFED": (BLUE, "-"),
    "FedAMS": (RED, DASHES["dash"]),
    "STEM": (GREEN, DASHES["dot"]),
    "FedAdam": (PINK, DASH_DOT),
    "SCAFFOLD": (OCHRE, (0, (9, 2))),
    "FedAvg": (INK, "-"),
    "FedCM": (GREEN, "-"),
    "SCAFFOLDM": (OCHRE, "-"),
    "FedMuon": (PINK, "-"),
    "FedKron": (RED, "-"),
}
OTHER = (MUTED, DASHES["dash"])
COLUMNS = 6  # of a legend
UNITS = {"round": "rounds", "gradients": "gradients, all clients", "bytes": "sent, all clients"}
SIZE = (7.2, 2.9)  # inches of a row of three panels: the text keeps its size in print
ABOVE_LATER = 3  # the perplexity axis ends at this multiple of the second half's largest value

Lines = dict[str, list[Outcome]]  # label -> runs
Draw = Callable[[Findings], "Figure | None"]


def write(findings: Findings, folder: Path, only: Sequence[str] = ()) -> list[str]:
    """Write every figure that has something to draw; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with styled():
        for name, draw in FIGURES.items():
            if (only and name not in only) or (figure := draw(findings)) is None:
                continue
            save(figure, [folder / f"{name}.svg"])
            written.append(name)
    return written


def available(findings: Findings) -> list[str]:
    """The names of the figures that have something to draw."""
    with styled():
        return [name for name, draw in FIGURES.items() if draw(findings) is not None]


def table_2(findings: Findings) -> Figure | None:
    """Test accuracy against rounds."""
    return _row(findings, _levels(findings), findings.finals, ACCURACY, "test accuracy")


def costs(findings: Findings) -> Figure | None:
    """The same against gradients and bytes."""
    if not any(
        findings.finals(name, m) for name in findings.levels for m in findings.protocol.methods
    ):
        return None
    count = len(findings.levels)
    figure, axes = panels(2, count, (SIZE[0], 1.8 * SIZE[1]))
    for i, axis in enumerate(("gradients", "bytes")):
        for name, panel in zip(findings.levels, axes[count * i :], strict=False):
            _curves(panel, _lines(findings, name, findings.finals), ACCURACY, axis)
            name_axes(
                panel, level(name), UNITS[axis], "test accuracy" if panel in axes[::count] else ""
            )
    _legend(figure, axes)
    return figure


def long(findings: Findings) -> Figure | None:
    return _row(findings, _levels(findings), findings.longs, ACCURACY, "test accuracy")


def tuned(findings: Findings) -> Figure | None:
    return _row(findings, _levels(findings), findings.tuned, ACCURACY, "test accuracy")


def momentum(findings: Findings) -> Figure | None:
    """As `tuned`, with momentum."""
    runs = findings.with_momentum
    if not any(runs(name, FAFED) for name in findings.levels):
        return None
    return _row(findings, _levels(findings), runs, ACCURACY, "test accuracy")


def training(at: str) -> Draw:
    """Training loss against rounds on the three data sets."""

    def draw(findings: Findings) -> Figure | None:
        return _row(
            findings,
            findings.data_of(at),
            findings.curves,
            "train_loss",
            "training loss",
            log=True,
        )

    return draw


def decayed(findings: Findings) -> Figure | None:
    """As `table_2`, with a falling step size and newer methods."""
    methods = findings.protocol.decay.methods
    levels = _levels(findings)
    return _row(findings, levels, findings.decayed, ACCURACY, "test accuracy", methods=methods)


def language(findings: Findings) -> Figure | None:
    """Training loss and training perplexity of the language models.

    The perplexity axis is cut: its first values are so high that they would hide all differences.
    """
    p = findings.protocol
    found = {p.language[name].about: _large(findings, name) for name in p.language}
    small = {title(m): runs for m in p.text.methods if (runs := findings.texts(m))}
    if small and (control := findings.text_control()):
        small[CONTROL] = control
    found = {p.text.about: small, **found}
    found = {about: lines for about, lines in found.items() if lines}
    if not found:
        return None
    figure, axes = panels(len(found), 2, (SIZE[0], len(found) * SIZE[1]))
    for i, (about, lines) in enumerate(found.items()):
        left, right = axes[2 * i : 2 * i + 2]
        _curves(left, lines, "train_loss", "round")
        top = ABOVE_LATER * max(_later(run) for runs in lines.values() for run in runs)
        _curves(right, lines, "train_loss", "round", log=True, transform=perplexity, top=top)
        name_axes(left, about, "rounds", "training loss")
        name_axes(right, about, "rounds", "training perplexity")
    _legend(figure, axes)
    return figure


def _large(findings: Findings, name: str) -> Lines:
    lines = {label: [run] for label, run in findings.language(name).items()}
    control = findings.control(name)
    return {**lines, CONTROL: [control]} if lines and control else lines


def first_rounds(findings: Findings) -> Figure | None:
    """FAFED in the first rounds: what changes its own settings, and what it is compared with."""
    found = findings.first_rounds()
    if not found:
        return None
    words = findings.protocol.experiment(findings.protocol.first_rounds.experiment).data.words
    figure, axes = panels(1, 2, (SIZE[0], 1.25 * SIZE[1]))
    (_, base), *others = found
    own = [(case, run) for case, run in others if case.algorithm == FAFED]
    rest = [(case, run) for case, run in others if case.algorithm != FAFED]
    for panel, heading, cases in zip(
        axes, ("FAFED, one change", "other methods"), (own, rest), strict=True
    ):
        lines = [(found[0][0], base), *cases]
        for (case, run), (hue, dash) in zip(lines, STYLES.values(), strict=False):
            points = run.series("train_loss")
            width = 2.4 if case is found[0][0] else 1.2
            rounds, losses = zip(*points, strict=True)
            panel.plot(rounds, losses, color=hue, linestyle=dash, linewidth=width, label=case.about)
        panel.axhline(math.log(words or WORDS), color=MUTED, linewidth=0.8, linestyle=":")
        name_axes(panel, heading, UNITS["round"], "training loss" if panel is axes[0] else "")
        panel.legend(frameon=False, fontsize=7)
        panel.set_yscale("log")
        _plain_numbers(panel)
    return figure


def sensitivity(findings: Findings) -> Figure | None:
    found = findings.sensitivity()
    if not any(found.values()):
        return None
    figure, axes = panels(2, 3, (SIZE[0], 1.7 * SIZE[1]))
    tail = findings.protocol.tail
    for panel, (what, runs) in zip(axes, found.items(), strict=False):
        points = [(value, run.end(ACCURACY, tail)) for value, run in runs]
        name_axes(panel, what.rpartition(".")[2].replace("_", " "), "", "test accuracy")
        names = [f"{value:g}" for value, _ in points]
        if not points:
            _empty(panel)
            continue
        panel.plot(range(len(points)), [y for _, y in points], color=BLUE, marker="o", markersize=4)
        panel.set_xticks(range(len(points)), names)
    drawn = [panel for panel in axes if panel.get_lines()]
    low, high = zip(*(panel.get_ylim() for panel in drawn), strict=True)
    room = 0.03 * (max(high) - min(low))
    for panel in drawn:  # so that heights can be compared
        panel.set_ylim(min(low) - room, max(high) + room)
    for panel in axes[len(found) :]:
        panel.set_visible(False)
    return figure


FIGURES: dict[str, Draw] = {
    "table-2": table_2,
    "costs": costs,
    "long": long,
    "tuned": tuned,
    "momentum": momentum,
    "decay": decayed,
    "first-rounds": first_rounds,
    "sensitivity": sensitivity,
    "figure-1": language,
    "figure-2": training("low"),
    "figure-3": training("moderate"),
    "figure-4": training("high"),
}


# Used by the figures above.


def _levels(findings: Findings) -> dict[str, str]:
    return {level(name): name for name in findings.levels}


def _row(
    findings: Findings,
    names: Mapping[str, str],
    runs: Runs,
    quantity: str,
    label: str,
    log: bool = False,
    methods: Sequence[str] | None = None,
) -> Figure | None:
    """One panel for each experiment, by its heading."""
    lines = [_lines(findings, name, runs, methods) for name in names.values()]
    if not any(lines):
        return None
    figure, axes = panels(1, len(names), SIZE)
    for heading, panel, mine in zip(names, axes, lines, strict=True):
        _curves(panel, mine, quantity, "round", log=log)
        name_axes(panel, heading, UNITS["round"], label if panel is axes[0] else "")
    _legend(figure, axes)
    return figure


def _lines(
    findings: Findings, name: str, runs: Runs, methods: Sequence[str] | None = None
) -> Lines:
    chosen = methods or findings.protocol.methods
    found = {title(method): runs(name, method) for method in chosen}
    return {label: mine for label, mine in found.items() if mine}


def _curves(
    panel: Axes,
    lines: Lines,
    quantity: str,
    axis: str,
    *,
    log: bool = False,
    transform: Callable[[float], float] = float,
    top: float | None = None,
) -> None:
    """Draw the mean over seeds, and shade from the lowest to the highest seed."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if not lines:
        _empty(panel)
        return
    for label, runs in lines.items():
        series = [run.series(quantity, axis) for run in runs if not run.failure]
        if not series:
            continue
        x = [cost for cost, _ in series[0]]
        values = list(zip(*([transform(y) for _, y in one] for one in series), strict=True))
        hue, dash = STYLES.get(label, OTHER)
        if len(series) > 1:
            low, high = [min(v) for v in values], [max(v) for v in values]
            panel.fill_between(x, low, high, color=hue, alpha=0.15, linewidth=0)
        panel.plot(
            x,
            [sum(v) / len(v) for v in values],
            color=hue,
            linestyle=dash,
            linewidth=2.4 if label == title(FAFED) else 1.2,
            label=label,
        )
    panel.xaxis.set_major_locator(MaxNLocator(3 if axis == "bytes" else 4))
    unit = "B" if axis == "bytes" else ""
    panel.xaxis.set_major_formatter(EngFormatter(unit=unit, sep=" " if unit else ""))
    panel.set_xlim(left=0)
    if log:
        panel.set_yscale("log")
        panel.set_ylim(top=top)
        _plain_numbers(panel)
    elif quantity == ACCURACY:
        panel.set_ylim(bottom=_floor(lines))


def _later(run: Outcome) -> float:
    """The largest training perplexity of the second half."""
    losses = [y for r, y in run.series("train_loss") if 2 * r > run.job.rounds]
    return max(map(perplexity, losses), default=1.0)


def _floor(lines: Lines) -> float:
    """The lower end of the accuracy axis: it leaves out the start, where all curves coincide."""
    ends = [run.end(ACCURACY, 1) for runs in lines.values() for run in runs if not run.failure]
    return min(ends, default=0.12) - 0.12


def _plain_numbers(panel: Axes) -> None:
    from matplotlib.ticker import (
        EngFormatter,
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
    )

    low, high = panel.get_ylim()
    if high > 1000 * low:  # ticks at powers of ten only
        panel.yaxis.set_major_locator(LogLocator())
        panel.yaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        steps = MaxNLocator(5) if high < 5 * low else LogLocator(subs=(1.0, 2.0, 3.0, 5.0))
        panel.yaxis.set_major_locator(steps)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


def _empty(panel: Axes) -> None:
    panel.set_xticks([])
    panel.set_yticks([])
    note(panel, "not run yet", (0.5, 0.5), xycoords="axes fraction", ha="center")


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    handles = {line.get_label(): line for panel in axes for line in panel.get_lines()}
    order = [label for label in handles if not str(label).startswith("_")]
    figure.legend(
        handles=[handles[label] for label in order],
        loc="outside lower center",
        ncols=min(len(order), COLUMNS),
        frameon=False,
        fontsize=8,
    )
