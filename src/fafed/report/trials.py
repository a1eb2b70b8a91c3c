"""Parallel coordinates of a study: where each trial crosses each parameter's axis, in [0, 1]."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fafed.core.run_data import StudyData, show
from fafed.report.numbers import number

LOG_RATIO = 30  # parameters with a larger ratio have a logarithmic axis


def ranked(study: StudyData) -> list[dict[str, Any]]:
    """Trials with a finite value, the best first."""
    valued = [t for t in study.trials if t["value"] is not None and math.isfinite(t["value"])]
    return sorted(valued, key=lambda t: t["value"], reverse=study.direction == "maximize")


def states(study: StudyData) -> str:
    """3 complete, 1 pruned"""
    counts = Counter(str(trial["state"]).lower() for trial in study.trials)
    return ", ".join(f"{n} {state}" for state, n in counts.most_common())


def coordinates(study: StudyData) -> dict[str, object]:
    """What the page draws: axes with their ticks, and one line per trial, the worst first."""
    trials = ranked(study)[::-1]  # the best are drawn last, on top
    axes, columns = [], []
    for name in study.parameters:
        positions, ticks = _scale([trial["params"].get(name) for trial in trials])
        axes.append({"label": name, "ticks": ticks})
        columns.append(positions)
    positions, ticks = _scale([trial["value"] for trial in trials])
    axes.append({"label": "value", "ticks": ticks})
    columns.append(positions)
    lines = [
        {
            "at": list(at),
            "rank": i / max(1, len(trials) - 1),  # 1 is the best
            "text": [
                *(f"{name} = {show(value)}" for name, value in trial["params"].items()),
                f"value = {number(trial['value'])}",
            ],
        }
        for i, (trial, at) in enumerate(zip(trials, zip(*columns, strict=True), strict=True))
    ]
    return {"axes": axes, "lines": lines}


def _scale(values: Sequence[Any]) -> tuple[list[float | None], list[dict[str, object]]]:
    """Positions in [0, 1] (None for a parameter that a trial did not have) and the ticks."""
    present = [value for value in values if value is not None]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in present):
        return _categories(values)
    low, high = min(present, default=0.0), max(present, default=0.0)
    logarithmic = low > 0 and high / low > LOG_RATIO
    forward = math.log if logarithmic else float
    span = forward(high) - forward(low)

    def place(value: float) -> float:
        return (forward(value) - forward(low)) / span if span else 0.5

    middle = math.sqrt(low * high) if logarithmic else (low + high) / 2
    marks = [low, middle, high] if span else [low]
    ticks: list[dict[str, object]] = [{"at": place(mark), "text": f"{mark:.3g}"} for mark in marks]
    return [None if value is None else place(value) for value in values], ticks


def _categories(values: Sequence[object]) -> tuple[list[float | None], list[dict[str, object]]]:
    names = sorted({show(value) for value in values if value is not None})
    at = {name: i / (len(names) - 1) if len(names) > 1 else 0.5 for i, name in enumerate(names)}
    positions = [None if value is None else at[show(value)] for value in values]
    return positions, [{"at": at[name], "text": name} for name in names]
