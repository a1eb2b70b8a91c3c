"""The sections of the page as HTML. Every string from the data goes through `escape`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from fafed.core.run_data import RunData, StudyData, show
from fafed.report import trials
from fafed.report.curves import Curve, differing
from fafed.report.numbers import NOTHING, Stat, count, duration, listing, number, size
from fafed.report.palette import style
from fafed.report.quantities import AXES, Quantity
from fafed.report.tables import Row, columns, winner
from fafed.report.target import Reach, Target

BEST_TRIALS = 8
COST_TEXT = {"rounds": count, "gradients": count, "bytes": size, "seconds": duration}
COST_NAME = {
    "rounds": "Fewest rounds",
    "gradients": "Fewest gradients",
    "bytes": "Fewest bytes",
    "seconds": "Least time",
}
_LOSSES = (
    "The training loss of the clients is that of their own models along their local steps. The "
    "training loss of the server's model is measured after the round, on a sample of the clients' "
    "data. It is shown first if every run has it."
)
Drawn = Sequence[tuple[Quantity, int | None]]


def default_title(runs: Sequence[RunData], curves: Sequence[Curve]) -> str:
    names = {str(run.config["name"]) for run in runs if run.config.get("name")}
    if len(names) == 1:
        return names.pop()
    return curves[0].label if len(curves) == 1 else f"{len(curves)} curves compared"


def header(
    title: str,
    curves: Sequence[Curve],
    rows: Sequence[Row],
    quantity: Quantity,
    target: Target | None,
    reached: Sequence[Reach],
) -> str:
    return (
        f'<header>\n<p class="eyebrow">fafed report</p>\n<h1>{escape(title)}</h1>\n'
        f'<p class="compared">{escape(compared(curves))}</p>\n'
        f'<p class="finding">{finding(rows, quantity)}</p>\n'
        f"{_tiles(target, reached)}</header>"
    )


def compared(curves: Sequence[Curve]) -> str:
    """What was compared, from the settings that all curves share."""
    labels = [curve.label for curve in curves]
    names = listing(labels) if len(labels) <= 6 else f"{len(labels)} curves"
    same = _common(curves)
    parts = [names]
    if "data.name" in same:
        parts.append(f"on {show(same['data.name'])}")
    many = {len(run.counts) for curve in curves for run in curve.runs if run.counts}
    if same.get("data.folder") or same.get("data.function"):  # one's own data decide it
        parts += [f"with {many.pop()} clients"] if len(many) == 1 else []
    elif "data.clients" in same:
        parts.append(f"with {show(same['data.clients'])} clients")
    if "model.name" in same:
        parts.append(f"({show(same['model.name'])})")
    seeds = sorted({len(curve.runs) for curve in curves})
    each_has = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    rounds = sorted({curve.rounds for curve in curves})
    length = " to ".join(f"{r:,}" for r in dict.fromkeys([rounds[0], rounds[-1]]))
    each = " each" if len(curves) > 1 else ""
    return (
        f"{' '.join(parts)} · {each_has} seed{'' if seeds[-1] == 1 else 's'}{each}"
        f" · {length} round{'' if rounds[-1] == 1 else 's'}"
    )


def finding(rows: Sequence[Row], quantity: Quantity) -> str:
    """Which curve ends best and by how much. No winner is named on one seed, or if the difference
    is smaller than the spread over seeds."""
    ends = [(row, stat) for row in rows if (stat := _ranked_by(row, quantity)) is not None]
    ends = [(row, stat) for row, stat in ends if math.isfinite(stat.mean)]
    name = quantity.title.split(" = ")[0].lower()
    if not ends:
        return f"No curve ends with a finite {escape(name)}."
    ends.sort(key=lambda end: end[1].mean, reverse=quantity.higher)
    (row, stat), *others = ends
    value = f"<strong>{escape(quantity.spread(stat))}</strong>"
    over = "one seed" if stat.n == 1 else f"mean ±&nbsp;std over {stat.n} seeds"
    label = f"<strong>{escape(row.label)}</strong>"
    if not others:
        return f"{label} ends with a {escape(name)} of {value} ({over})."
    second, runner_up = others[0]

    def shown(gap: float) -> str:
        return f"{100 * gap:.2f} points" if quantity.share else number(gap)

    gap = abs(stat.mean - runner_up.mean)
    if winner([end for _, end in ends], quantity.higher) is not None:
        rank = "highest" if quantity.higher else "lowest"
        return (
            f"{label} ends with the {rank} {escape(name)}, {value} ({over}), "
            f"{shown(gap)} {'above' if quantity.higher else 'below'} {escape(second.label)}. "
            f"This is more than the spread over seeds."
        )
    both = (
        f"{label} ends with a {escape(name)} of {value}, <strong>{escape(second.label)}</strong> "
        f"with <strong>{escape(quantity.spread(runner_up))}</strong>."
    )
    if min(end.n for _, end in ends) == 1:
        return f"{both} One seed: no winner is named."
    return f"{both} No winner: the difference is smaller than the spread over seeds."


def _ranked_by(row: Row, quantity: Quantity) -> Stat | None:
    return row.of(quantity)


def _tiles(target: Target | None, reached: Sequence[Reach]) -> str:
    """For each cost, the least with which a curve reaches the target, and which curve if it is
    clear. A baseline does not count: it sends nothing, and one with all data has no clients."""
    reached = [reach for reach in reached if not reach.baseline]
    able = [reach for reach in reached if reach.costs]
    if target is None or len(reached) < 2 or not able:
        return ""
    goal = escape(target.quantity.brief(target.value))
    tiles = []
    for axis, name in COST_NAME.items():
        costs = [reach.costs.get(axis) for reach in reached]
        first = winner(costs, higher=False)
        least = min(cost.mean for cost in costs if cost is not None)
        if first is not None:
            who = escape(reached[first].label)
        elif min(reach.seeds for reach in able) == 1:
            who = '<span class="muted">one seed: no winner</span>'
        else:
            who = '<span class="muted">no winner: within the spread</span>'
        tiles.append(
            f"<div><dt>{name} to {goal}</dt>"
            f'<dd class="value">{COST_TEXT[axis](least)}</dd><dd>{who}</dd></div>'
        )
    return f'<dl class="tiles">{"".join(tiles)}</dl>\n'


def swatch(index: int) -> str:
    hue, dash = style(index)
    dashes = {"solid": "", "dash": ' stroke-dasharray="6 3"', "dot": ' stroke-dasharray="2 2"'}
    return (
        '<svg class="swatch" width="22" height="10" aria-hidden="true"><line x1="0" y1="5" '
        f'x2="22" y2="5" stroke="var(--hue-{hue})" stroke-width="3"{dashes[dash]}/></svg>'
    )


def _switch(name: str, legend: str, options: Sequence[tuple[str, str]]) -> str:
    """Radio buttons that look like one segmented button: arrows and Tab work by themselves."""
    buttons = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"'
        f"{' checked' if i == 0 else ''}><span>{text}</span></label>"
        for i, (value, text) in enumerate(options)
    )
    return f'<fieldset class="switch"><legend>{legend}</legend>{buttons}</fieldset>'


def _plot(kind: str, index: int, label: str) -> str:
    return (
        f'<div class="plot" data-kind="{kind}" data-index="{index}" '
        f'role="img" aria-label="{escape(label)}"></div>'
    )


def _charts(drawn: Drawn, target: Target | None = None) -> str:
    def caption(quantity: Quantity) -> str:
        # Beside the title, because inside the chart it would cover the curves.
        if target is None or target.quantity.key != quantity.key:
            return f"<h3>{escape(quantity.title)}</h3>"
        goal = escape(quantity.brief(target.value))
        return (
            f"<h3>{escape(quantity.title)} "
            f'<span class="muted small">dotted line: target {goal}</span></h3>'
        )

    figures = [
        f"<figure><figcaption>{caption(quantity)}</figcaption>"
        f"{_plot('chart', index, f'Line chart: {quantity.title}')}</figure>"
        for quantity, index in drawn
        if index is not None
    ]
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def curves(curves: Sequence[Curve], main: Drawn, inner: Drawn, target: Target | None) -> str:
    several = any(len(curve.runs) > 1 for curve in curves)
    shading = "Lines are means over seeds, shading reaches from the lowest to the highest seed."
    legend = "".join(
        f'<li><button type="button" aria-pressed="true" data-curve="{i}">{swatch(i)}'
        f"{escape(curve.label)}</button></li>"
        for i, curve in enumerate(curves)
    )
    diagnostics = _charts(inner)
    if diagnostics:
        diagnostics = f"<details><summary>Diagnostics</summary>{diagnostics}</details>"
    return (
        '<section id="curves"><h2>Curves</h2>'
        f'<p class="muted small">{shading if several else ""} '
        "Switch the cost on the horizontal axis, press a name to hide its curve, drag to zoom and "
        "double-click to return.</p>"
        "<noscript><p>The charts need JavaScript; curves-rounds.svg beside this file shows "
        "the main ones without it.</p></noscript>"
        '<div class="toolbar">'
        + _switch("axis", "Horizontal axis", [(axis.key, axis.name) for axis in AXES.values()])
        + _switch("scale", "Scale of losses", [("linear", "Linear"), ("log", "Log loss")])
        + f'</div><ul class="legend">{legend}</ul>{_charts(main, target)}{diagnostics}</section>'
    )


def html_table(head: Sequence[str], body: Sequence[str], css: str, caption: str) -> str:
    cells = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    # Focusable, so that the keyboard can scroll a wide table.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="{css}"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def final(
    rows: Sequence[Row],
    measured: Sequence[Quantity],
    losses: Sequence[Quantity],
    ranked_by: Quantity,
) -> str:
    found = columns(rows, measured, losses)
    best = [winner([column.stat(row) for row in rows], column.higher) for column in found]
    body = []
    for i, row in enumerate(rows):
        cells = "".join(
            f"<td><strong>{escape(column.text(row))}</strong></td>"
            if best[k] == i
            else f"<td>{escape(column.text(row))}</td>"
            for k, column in enumerate(found)
        )
        body.append(f'<tr><th scope="row">{swatch(i)}{escape(row.label)}</th>{cells}</tr>')
    head = ["Algorithm", *(column.title for column in found)]
    spread = " ± standard deviation" if any(row.seeds > 1 for row in rows) else ""
    best_note = (
        f" Best {ranked_by.title.split(' = ')[0].lower()}: each seed's best round, then the mean."
        if measured
        else ""
    )
    bold = "Bold: better than all others by more than the spread over seeds."
    if len(rows) < 2:
        bold = ""
    elif not spread:
        bold = "One seed: no winner is named."
    return (
        '<section id="final"><h2>Final numbers</h2>'
        f'<p class="muted small">Mean{spread} over seeds at the last measured round. {bold}'
        f"{escape(best_note)} {escape(_LOSSES)} Gradients, bytes and time are sums over all rounds "
        "and clients, averaged over seeds; a gradient is one step's batch.</p>"
        f"{html_table(head, body, 'wide names', 'Final numbers')}</section>"
    )


def targets(target: Target | None, reached: Sequence[Reach]) -> str:
    if target is None:
        return ""
    body = []
    for i, reach in enumerate(reached):
        if reach.costs:
            texts = [_cost(axis, reach.costs[axis]) for axis in AXES]
            cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
        else:
            some = f" by {reach.seeds - reach.reached} of {reach.seeds} seeds"
            missed = f"not reached{some if reach.reached else ''}"
            cells = f'<td class="muted" colspan="{len(AXES)}">{missed}</td>'
        body.append(f'<tr><th scope="row">{swatch(i)}{escape(reach.label)}</th>{cells}</tr>')
    head = ["Algorithm", "Rounds", "Gradients", "Bytes", "Time"]
    name = target.quantity.title.split(" = ")[0].lower()
    goal = target.quantity.brief(target.value)
    return (
        f'<section id="target"><h2>Cost of reaching {escape(goal)} {escape(name)}</h2>'
        f'<p class="muted small">Target {escape(target.rule)}. What each seed had spent at its '
        "first measured round at or beyond the target, mean ± standard deviation over seeds."
        f"</p>{html_table(head, body, 'names', 'Cost of reaching the target')}"
        "</section>"
    )


def _cost(axis: str, stat: Stat) -> str:
    text = COST_TEXT[axis]
    if not stat.std:
        return text(stat.mean)
    # Thousands of gradients need no decimals.
    std = round(stat.std) if stat.mean >= 1000 else stat.std
    return f"{text(stat.mean)} ± {text(std)}"


def clients(heats: Sequence[dict[str, Any]]) -> str:
    if not heats:
        return ""
    figures = []
    for i, heat in enumerate(heats):
        total, shown = heat["total_clients"], len(heat["clients"])
        which = f"{heat['title']}: " if heat["title"] else ""
        seed = "" if heat["seed"] is None else f" Shown for seed {show(heat['seed'])}."
        some = f" {shown:,} of {total:,} clients, evenly spaced." if shown < total else ""
        examples = f"{sum(heat['by_class']):,} examples on {total:,} clients."
        figures.append(
            f'<figure><figcaption class="muted small">{escape(which + examples + seed + some)}'
            f"</figcaption>{_plot('heat', i, 'Heat map: examples by client and class')}"
            "</figure>"
        )
    return (
        '<section id="clients"><h2>Who has what</h2>'
        '<p class="muted small">Training examples by client and class; the stronger the '
        f"colour, the more. Bars are totals.</p>{''.join(figures)}</section>"
    )


def tuning(studies: Sequence[StudyData]) -> str:
    if not studies:
        return ""
    parts, drawn = [], 0
    for study in studies:
        best = trials.ranked(study)
        plot = ""
        if best:
            plot = _plot("study", drawn, f"Trials of {study.name}")
            drawn += 1
        rows = [
            f'<tr><th scope="row">{i + 1}</th>'
            f"<td>{escape(number(trial['value']))}</td>"
            + "".join(
                f"<td>{escape(_parameter(trial['params'].get(p)))}</td>" for p in study.parameters
            )
            + "</tr>"
            for i, trial in enumerate(best[:BEST_TRIALS])
        ]
        goal = "lowest" if study.direction == "minimize" else "highest"
        parts.append(
            f"<figure><figcaption><h3>{escape(study.name)}</h3>"
            f'<p class="muted small">{escape(study.rule)} The {goal} value wins; its line '
            f"stands out. {len(study.trials):,} trials: {escape(trials.states(study))}.</p>"
            f"</figcaption>{plot}</figure>"
            + html_table(
                ["Rank", "Value", *study.parameters], rows, "", f"Best trials of {study.name}"
            )
        )
    return f'<section id="tuning"><h2>Tuning</h2>{"".join(parts)}</section>'


def _parameter(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return NOTHING if value is None else show(value)


def _common(curves: Sequence[Curve]) -> dict[str, object]:
    apart = set(differing([curve.settings for curve in curves]))
    same = {key: value for key, value in curves[0].settings.items() if key not in apart}
    if same.get("data.folder") or same.get("data.function"):  # its clients are given, not dealt out
        same = {
            k: v for k, v in same.items() if not k.startswith(("data.clients", "data.partition"))
        }
    return same


def settings(curves: Sequence[Curve]) -> str:
    same = [
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(show(value))}</td></tr>'
        for key, value in _common(curves).items()
    ]
    parts = []
    keys = differing([curve.settings for curve in curves])
    if keys:
        rows = []
        for key in keys:
            cells = (show(curve.settings.get(key, NOTHING)) for curve in curves)
            line = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            rows.append(f'<tr><th scope="row">{escape(key)}</th>{line}</tr>')
        head = ["Setting", *(curve.label for curve in curves)]
        parts.append("<h3>Different between the curves</h3>")
        parts.append(html_table(head, rows, "text", "Settings that differ"))
        if any(key not in curve.settings for key in keys for curve in curves):
            parts.append(
                f'<p class="muted small">{NOTHING}: not given, so its default holds, or unknown to '
                "the algorithm.</p>"
            )
    if same:
        shared = "Shared by all" if len(curves) > 1 else "Of all runs"
        parts.append(f"<h3>{shared}</h3>{html_table(['Setting', 'Value'], same, 'text', shared)}")
    runs = [
        f'<tr><th scope="row">{escape(run.name)}</th><td>{escape(curve.label)}</td>'
        f"<td>{escape(show(run.config.get('seed', NOTHING)))}</td><td>{len(run.records):,}</td>"
        f"<td>{'yes' if run.finished else 'no'}</td></tr>"
        for curve in curves
        for run in curve.runs
    ]
    head = ["Run", "Curve", "Seed", "Records", "Finished"]
    return (
        f'<section id="settings"><h2>Settings</h2>{"".join(parts)}'
        "<details><summary>Runs</summary>"
        f"{html_table(head, runs, 'text', 'Runs')}</details></section>"
    )


def notes(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="notes" aria-label="Notes">{items}</ul>'
