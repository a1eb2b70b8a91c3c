"""The adaptive matrix on badly scaled problems: the best of a grid of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from studies.theory.findings import Table, short
from studies.theory.problems import Robust
from studies.theory.protocols import Scaling, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ETAS: dict[str, tuple[float, ...]] = {
    "STEM": (0.01, 0.05, 0.2, 1.0, 5.0),
    "FAFED": (0.002, 0.01, 0.05, 0.2, 1.0),
}
ALPHAS = (0.3, 0.1, 0.03, 0.01, 0.003)


class Scenario(NamedTuple):
    label: str
    smallest: float
    rotated: bool = False
    e1_scaled: bool = True


SCENARIOS = (
    Scenario("1", 1.0),
    Scenario("0.1", 0.1),
    Scenario("0.01", 0.01),
    Scenario("0.01, rotated", 0.01, rotated=True),
    Scenario("0.01, equal noise", 0.01, e1_scaled=False),
)


def tasks(T: int, seeds: int) -> dict[Any, Task]:
    return {
        (m, s): Scaling(m, s.smallest, s.rotated, s.e1_scaled, ETAS[m], ALPHAS, T, seeds)
        for m in ETAS
        for s in SCENARIOS
    }


class Result(NamedTuple):
    table: Table
    best: dict[tuple[str, str], float]  # (method, scenario) -> loss
    floor: float


def result(results: dict[Any, NDArray[np.float64]]) -> Result:
    best, rows = {}, []
    for s in SCENARIOS:
        row: list[Any] = [s.label]
        for m in ETAS:
            means = results[m, s].mean(-1)
            means = np.where(np.isfinite(means), means, np.inf)
            eta, alpha = np.unravel_index(means.argmin(), means.shape)
            best[m, s.label] = float(means.min())
            row += [best[m, s.label], ETAS[m][eta], ALPHAS[alpha]]
        rows.append(tuple(row))
    problem = Robust(offsets="gaussian", rotated=False)
    floor = _floor(problem)
    table = Table(
        "Final loss on badly scaled problems",
        ("smallest scale", "STEM", "eta", "alpha", "FAFED", "eta", "alpha"),
        rows,
        "Best of a grid of 5 x 5 settings. Scales of the coordinates from this number to 1, "
        f"rho = 0.01; the least possible loss is {short(floor)}. Rotated: a rotation before the "
        "scales. Equal noise: additive noise of the same size in every coordinate, whatever its "
        "scale.",
    )
    return Result(table, best, floor)


def _floor(problem: Robust) -> float:
    """The least loss, by gradient descent from the mean of the offsets."""
    x = torch.zeros(problem.d, dtype=torch.float64)
    for _ in range(500):
        x = x - 0.2 * problem.full(x)
    return float(problem.value(x))


def draw(scaling: Result) -> Figure:
    from studies.theory.figures import DASH, HUES, MUTED, name_axes, note, panels

    figure, (axis,) = panels(1, 1, (6.4, 2.6))
    for place, s in enumerate(reversed(SCENARIOS)):
        ends = [scaling.best[m, s.label] for m in ETAS]
        axis.plot(ends, [place, place], color=MUTED, linewidth=0.8, zorder=1)
        for m, value in zip(ETAS, ends, strict=True):
            axis.plot(value, place, "o", color=HUES[m], markersize=6)
    top = len(SCENARIOS) - 1
    axis.axvline(scaling.floor, color=MUTED, linewidth=0.8, linestyle=DASH)
    note(axis, "least possible", (scaling.floor + 0.08, top + 0.02))
    row = SCENARIOS.index(next(s for s in SCENARIOS if s.label == "0.01"))
    for m in ETAS:
        note(axis, m, (scaling.best[m, "0.01"], top - row + 0.33), HUES[m], ha="center")
    axis.set_yticks(range(len(SCENARIOS)), [s.label for s in reversed(SCENARIOS)])
    axis.set_ylim(-0.5, top + 0.5)
    axis.grid(False)
    axis.grid(True, axis="x")
    name_axes(axis, "What the adaptive matrix is for", "Best final loss", "Smallest scale")
    return figure
