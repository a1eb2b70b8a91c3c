"""The HTML page: one file with its data, styles and scripts. It uses no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from fafed.core.run_data import RunData, StudyData
from fafed.report import client_numbers, sections
from fafed.report.curves import make_curves, remarks
from fafed.report.palette import DARK, LIGHT
from fafed.report.payload import MOST_POINTS, Charts, axes, curve_styles, heat_maps, to_json
from fafed.report.quantities import diagnosed, evaluated, training
from fafed.report.tables import table
from fafed.report.target import choose_target, reaches
from fafed.report.trials import coordinates, ranked


def page(
    runs: Sequence[RunData],
    *,
    title: str | None = None,
    target: float | None = None,
    studies: Sequence[StudyData] = (),
    damaged: Mapping[str, str] | None = None,
) -> str:
    """The whole report as one HTML document."""
    curves, rows = make_curves(runs), table(runs)
    measured = evaluated(runs)
    losses = training(runs)
    ranked_by = measured[0] if measured else losses[0]
    goal = choose_target(curves, ranked_by, target)
    reached = reaches(curves, goal) if goal else []
    studies = [study for study in studies if study.trials]

    charts = Charts(curves)
    main = [
        (quantity, charts.add(quantity, goal if quantity is ranked_by else None))
        for quantity in [losses[0], *measured, *losses[1:]]
    ]
    inner = [(quantity, charts.add(quantity)) for quantity in diagnosed(runs)]
    heats = heat_maps(curves)
    payload = {
        "axes": axes(),
        "curves": curve_styles(curves),
        "grids": charts.grids,
        "charts": charts.charts,
        "heat": heats,
        "studies": [coordinates(study) for study in studies if ranked(study)],
    }

    notes = [f"{name} is left out, it is damaged: {why}" for name, why in (damaged or {}).items()]
    notes += remarks(runs, curves)
    if not measured:
        notes.append(
            "Nothing was measured on test or validation data: the "
            f"{losses[0].title[0].lower()}{losses[0].title[1:]} ranks the curves."
        )
    if charts.thinned:
        notes.append(f"Lines of more than {MOST_POINTS:,} points are drawn with that many of them.")

    heading = title or sections.default_title(runs, curves)
    body = [
        sections.header(heading, curves, rows, ranked_by, goal, reached),
        "<main>",
        sections.notes(notes),  # before the numbers they are about
        sections.curves(curves, main, inner, goal),
        sections.final(rows, measured, losses, ranked_by),
        client_numbers.section(curves),
        sections.targets(goal, reached),
        sections.clients(heats),
        sections.tuning(studies),
        sections.settings(curves),
        "</main>",
        "<footer>Written by fafed. This file is self-contained and loads nothing from the "
        "network. Static versions of the charts (SVG and PNG) are in the same folder.</footer>",
    ]
    return _document(heading, "\n".join(filter(None, body)), to_json(payload))


def _document(title: str, body: str, payload: str) -> str:
    from plotly.offline import get_plotlyjs  # slow to import

    here = files("fafed.report")
    scripts = [_script(get_plotlyjs()), _script(here.joinpath("page.js").read_text("utf-8"))]
    # Only these two scripts may run, and nothing may be fetched, whatever the data contain.
    # Escaping is the first defence, this is the second.
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; "
        "style-src 'unsafe-inline'; img-src data: blob:"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light; {LIGHT.css()} }}
@media screen and (prefers-color-scheme: dark) {{
:root:not(.printing) {{ color-scheme: dark; {DARK.css()} }}
}}
{here.joinpath("page.css").read_text("utf-8")}</style>
</head>
<body>
{body}
<script type="application/json" id="report-data">{payload}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def _script(text: str) -> str:
    """The script as the browser sees it, without carriage returns, so that its hash is right."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
