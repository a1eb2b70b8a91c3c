"""Theorem 1 as a picture: naive adaptive FedAvg moves away from the optimum, FAFED towards it.

The limits of both are measured, too: where the naive method converges, and where FAFED does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fafed.algorithms import FAFED, FedAvg, NaiveAdaptiveFedAvg
from fafed.algorithms.naive import Local
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.schedules import TheoryMomentum, TheoryStep
from fafed.report.numbers import listing
from studies.theory.findings import Claim, Finding, Table, short, span
from studies.theory.lab import Lab, PerLane, PerLaneDecaying, one_thread
from studies.theory.problems import REAL, Counterexample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "counterexample"
ETA, BETA, RHO = 0.1, 0.5, 0.01  # the paper's example; FAFED's rho is the paper's default
SLOPE = 2 / 3  # of f outside [-1, 1]
ROOT = float(np.sqrt(44 / 3))  # of the mean squared gradient there
REACHED = 1e-3  # |x| below this counts as converged
GRID = (*(m * 10.0**k for k in (-3, -2, -1, 0) for m in (1, 2, 5)), 10.0)


def naive_closed(t: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean model after t steps while all iterates stay above 1 (rho = 0)."""
    steps = (1 - BETA ** np.arange(1, t.max() + 1)) ** -0.5
    return np.asarray(10 + ETA / 3 * np.cumsum(steps)[t - 1])


def fafed_closed(t: NDArray[np.int64], eta: float = ETA, rho: float = RHO) -> NDArray[np.float64]:
    """The mean model at step t while all iterates stay above 1, for every alpha, beta and q."""
    return np.asarray(10 - SLOPE * eta - (t - 1) * SLOPE * eta / (ROOT + rho))


def drift_closed(rho: Any) -> Any:
    """How far the naive method's mean moves per step, over eta, above 1 and with constant v."""
    return (4 / (2 + rho) - 6 / (6 + rho)) / 3


class Trajectory(NamedTuple):
    points: NDArray[np.float64]  # (steps, *lanes): the mean model at the start of every step
    ends: NDArray[np.float64]  # (rounds, *lanes): the model after every round


def trajectory(
    algorithm: AnyAlgorithm,
    q: int,
    T: int,
    lanes: tuple[int, ...] = (),
    x0: float = 10.0,
    start: Tensor | None = None,
) -> Trajectory:
    lab = Lab(algorithm, Counterexample(x0), q=q, lanes=lanes, start=start)
    found = [lab.round() for _ in range(T // q)]
    points = torch.cat([r.points for r in found])[..., 0, 0]
    return Trajectory(
        points.numpy(), torch.stack([r.shared.x[..., 0, 0, 0] for r in found]).numpy()
    )


@dataclass(frozen=True)
class WarmNaive(NaiveAdaptiveFedAvg):
    """Naive adaptive FedAvg whose private v all start at the same large value."""

    v0: float = 1e4

    def join(self, x: Tensor) -> Local:
        return super().join(x)._replace(v=torch.full_like(x, self.v0))


@dataclass(frozen=True)
class Setting:
    """A row of the table of FAFED's behaviour."""

    q: int
    eta: float | None  # None: the theory's step and alpha
    rho: float
    alphas: tuple[float, ...]
    T: int
    x0: float = 10.0

    def algorithm(self) -> FAFED:
        if self.eta is None:
            N, L = 3, 6.0
            eta = TheoryStep(L, N, self.q, self.rho)
            alpha = TheoryMomentum(L, N, self.q, 1, self.rho)
            return FAFED(eta, alpha, beta=BETA, rho=self.rho)
        return FAFED(self.eta, PerLane(self.alphas), beta=BETA, rho=self.rho)


SETTINGS = (
    Setting(1, 0.1, 0.1, (0.1, 0.9), 1000),
    Setting(1, 0.1, 0.01, (0.1, 0.9), 2000),
    Setting(5, 0.1, 0.01, (0.1, 0.9), 5000),
    Setting(10, 0.1, 0.01, (0.1, 0.9), 5000),
    Setting(20, 0.1, 0.01, (0.1, 0.9), 5000),
    Setting(10, 0.01, 1.0, (0.1, 0.9), 20000),
    Setting(10, None, 1.0, (), 15000, x0=1.0),  # from 10 it would take 100000 steps
)


@one_thread()
def measure(quick: bool = False) -> Finding:
    """`quick` leaves out most of the search for the largest step that converges."""
    directions = _compare_directions()
    limits, drifts = _limits()
    fates, traces = _fates()
    if quick:  # in shorter runs some small steps do not converge; the largest one still does
        largest = _largest((1.0,), (10,), 6000)
    else:
        largest = _largest((1.0, 3.0), (1, 5, 10, 20), 20000)
    tables = {"paths": directions.table, "limits": limits, "fates": fates, "largest": largest}
    return Finding(
        name=NAME,
        title="The counterexample",
        about=(
            "Three clients in one dimension with exact gradients: one pulls to the optimum 0 with "
            "slope 6, two push away from it with slope 2, and inside [-1, 1] the losses are "
            f"quadratic. Start at 10, eta = {ETA}, beta = {BETA}. Nothing is random."
        ),
        settings={"eta": ETA, "beta": BETA, "rho": RHO, "x0": 10.0},
        tables=tables,
        claims=_claims(directions, limits, fates, largest),
        lines={"paths": directions.lines, "drifts": drifts, "traces": traces},
    )


# The direction in which each method moves.


class _Directions(NamedTuple):
    table: Table
    lines: dict[str, Any]
    moved_away: int
    tried: int
    worst: float  # largest difference to the closed forms


def _compare_directions() -> _Directions:
    naive = trajectory(NaiveAdaptiveFedAvg(ETA, BETA), 1, 600).ends
    fafed = trajectory(FAFED(ETA, 0.1, beta=BETA, rho=RHO), 1, 300).ends
    rows, worst = [], 0.0
    for t in (1, 2, 10, 100, 600):
        closed = float(naive_closed(np.array([t]))[0])
        worst = max(worst, abs(closed - naive[t - 1]))
        rows.append(("naive adaptive FedAvg", t, closed, float(naive[t - 1])))
    for t in (100, 300):
        closed = float(fafed_closed(np.array([t]))[0])
        worst = max(worst, abs(closed - fafed[t - 2]))  # after t - 1 steps the model is that of t
        rows.append(("FAFED", t, closed, float(fafed[t - 2])))
    for q, beta in ((1, 0.9), (5, 0.5), (10, 0.9)):
        found = trajectory(FAFED(ETA, PerLane((0.1, 0.9)), beta=beta, rho=RHO), q, 300, (2,)).ends
        line = fafed_closed(np.arange(q, 301, q) + 1)[:, None]
        worst = max(worst, float(np.abs(found - line).max()))
    table = Table(
        "The mean model, computed and measured",
        ("algorithm", "t", "closed form", "measured"),
        rows,
        "q = 1; the closed forms hold while all iterates exceed 1.",
        digits=8,
    )
    lines = {
        "naive": [10.0, *naive.tolist()],
        "fafed": trajectory(FAFED(ETA, 0.1, beta=BETA, rho=RHO), 1, 700).points.tolist(),
    }
    away, tried = _count_moved_away()
    return _Directions(table, lines, away, tried, worst)


def _count_moved_away() -> tuple[int, int]:
    """How many settings of the naive method end farther from 0 than they began, and of how many."""
    starts = torch.tensor([10.0, 0.5, 0.1, 0.01, 0.001], dtype=REAL)
    etas = torch.tensor(GRID, dtype=REAL)[:, None].expand(-1, len(starts))
    start = starts.expand(len(GRID), -1)[..., None]
    away = tried = 0
    for beta in (0.0, 0.5, 0.9, 0.999):
        for rate in (PerLane(etas), PerLaneDecaying(etas)):
            for q in (1, 10):
                algorithm = NaiveAdaptiveFedAvg(rate, beta)
                ends = trajectory(algorithm, q, 300, tuple(etas.shape), start=start).ends[-1]
                away += int((np.abs(ends) > starts.numpy()).sum())
                tried += ends.size
    return away, tried


# Where the naive method does converge.


def _limits() -> tuple[Table, dict[str, Any]]:
    rhos = np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16])
    found = []
    for rho in rhos:
        ends = trajectory(NaiveAdaptiveFedAvg(0.01, BETA, float(rho)), 1, 70).ends
        found.append(float(ends[-1] - ends[-2]) / 0.01)
    rows: list[tuple[Any, ...]] = [
        (f"rho = {rho:g}", float(drift_closed(rho)), d)
        for rho, d in zip(rhos, found, strict=True)
        if rho in (0, 5, 6, 7, 12)
    ]
    floor = _clean(trajectory(NaiveAdaptiveFedAvg(4.0, BETA, 8.0), 1, 1000).ends[-1])
    warm = _clean(trajectory(WarmNaive(10.0, 0.9999), 1, 1000).ends[-1])
    rows.append(("rho = 8, eta = 4, after 1,000 steps", None, floor))
    rows.append(("rho = 0, v_0 = 10,000, beta = 0.9999, eta = 10", None, warm))
    table = Table(
        "A floor rho under the naive method's root",
        ("setting", "closed form", "measured"),
        rows,
        "Motion per step and unit of eta above 1, positive is away from the optimum; the last two "
        "rows are where the model ends.",
    )
    return table, {"rho": rhos.tolist(), "measured": found}


# Where FAFED converges and where it stalls.


def _fates() -> tuple[Table, dict[str, list[float]]]:
    rows: list[tuple[Any, ...]] = []
    traces = {}
    for s in SETTINGS:
        found = trajectory(s.algorithm(), s.q, s.T, (len(s.alphas),) if s.alphas else (), s.x0)
        points = found.points.reshape(s.T, -1)
        ends = found.ends.reshape(s.T // s.q, -1)
        tail = points[-s.T // 10 :]
        for k in range(points.shape[1]):
            alpha = s.alphas[k] if s.alphas else None
            (low, high), end = _range(tail[:, k]), _clean(ends[-1, k])
            rows.append(
                (
                    "FAFED",
                    s.q,
                    "theory" if s.eta is None else s.eta,
                    s.rho,
                    "theory" if alpha is None else alpha,
                    s.T,
                    low,
                    high,
                    end,
                    _fate(low, high),
                )
            )
            if (s.eta, s.rho, alpha) == (ETA, RHO, 0.9):
                traces[str(s.q)] = [s.x0, *ends[:, k].tolist()]
    etas, T = (0.1, 0.02, 0.01), 20000
    fedavg = trajectory(FedAvg(PerLane(etas)), 10, T, (3,))
    for k, eta in enumerate(etas):
        low, high = _range(fedavg.points[-T // 10 :, k])
        end = _clean(fedavg.ends[-1, k])
        rows.append(("FedAvg", 10, eta, None, None, T, low, high, end, _fate(low, high)))
    table = Table(
        "FAFED on the counterexample",
        (
            "algorithm",
            "q",
            "eta",
            "rho",
            "alpha",
            "T",
            "lowest",
            "highest",
            "after the last round",
            "fate",
        ),
        rows,
        "Lowest and highest mean model over the last tenth of the steps; below 1e-12 is shown as "
        "0. The row with the theory's step and alpha starts at 1.",
    )
    return table, traces


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    return _clean(values.min()), _clean(values.max())


def _clean(value: float) -> float:
    """Show numbers below 1e-12 as zero: they are rounding errors."""
    return 0.0 if abs(value) < 1e-12 else float(value)


def _fate(low: float, high: float) -> str:
    if max(abs(low), abs(high)) < REACHED:
        return "converges"
    return "cycles around 0" if low < 0 < high else "stalls"


def _largest(rhos: Sequence[float], qs: Sequence[int], T: int) -> Table:
    """The largest eta of a 1-2-5 grid that converges."""
    rows = []
    for rho in rhos:
        for q in qs:
            algorithm = FAFED(PerLane(GRID), 0.1, beta=BETA, rho=rho)
            ends = np.abs(trajectory(algorithm, q, T, (len(GRID),)).ends[-20:]).max(0)
            best = max(eta for eta, end in zip(GRID, ends, strict=True) if end < REACHED)
            rows.append((rho, q, best, best * q / rho, rho / (12 * 6 * q)))
    return Table(
        "Largest step that converges",
        ("rho", "q", "eta", "eta q / rho", "theory's eta, rho/(12 L q)"),
        rows,
        f"Grid 1-2-5 from {GRID[0]:g} to {GRID[-1]:g}, alpha = 0.1, T = {T:,}.",
    )


def _claims(directions: _Directions, limits: Table, fates: Table, largest: Table) -> list[Claim]:
    naive, fafed = directions.table.rows[3][3], directions.table.rows[-1][3]
    floor, warm = limits.rows[-2][2], limits.rows[-1][2]
    stalled = [row for row in fates.rows if (row[0], row[2], row[-1]) == ("FAFED", ETA, "stalls")]
    stalls = listing([f"q = {row[1]}, alpha = {row[4]:g} at {short(row[8], 3)}" for row in stalled])
    ratio = [row[2] / row[4] for row in largest.rows]
    return [
        Claim(
            "With private denominators the mean model leaves the optimum, however it is tuned.",
            directions.moved_away == directions.tried and naive > 10,
            f"From 10 it is at {short(naive, 6)} after 100 steps, and {directions.moved_away:,} of "
            f"{directions.tried:,} settings tried (step 0.001 to 10, constant or falling like "
            "1/sqrt(t), beta 0 to 0.999, starts 10 to 0.001, q 1 and 10) end farther away than "
            "they began.",
            "But a floor rho under the root turns the drift around at rho = 6 (q = 1): at rho = 8, "
            f"eta = 4 the naive method ends at {short(floor)}. And from a common v_0 of 10,000 "
            f"with beta = 0.9999 it ends at {short(warm)}, since its private denominators then "
            "stay almost equal.",
        ),
        Claim(
            "With the same gradients FAFED moves towards the optimum.",
            fafed < 10 and directions.worst < 1e-9,
            f"After 300 steps it is at {short(fafed, 6)}. Above 1 its speed is the same for every "
            "alpha, beta and q. Closed forms and measurements of both methods differ by at most "
            f"{short(directions.worst)}.",
        ),
        Claim(
            "FAFED reaches the optimum at the example's own step, whatever q and alpha are.",
            not stalled,
            f"With eta = {ETA} it stalls for {stalls}. This is ordinary client drift: inside a "
            "round the steep client reaches its quadratic part, its gradient shrinks, and the "
            "other two go on pushing outwards. A shared denominator cures the divergence, not the "
            "drift.",
        ),
        Claim(
            "The step of the convergence theorem, rho/(12 L q), is small enough.",
            all(r >= 1 for r in ratio),
            f"The largest step of the grid that converges is {span(ratio)} times as large.",
        ),
    ]


def draw(finding: Finding) -> dict[str, Figure]:
    from studies.theory.figures import (
        BLUE,
        DASH,
        GREEN,
        INK,
        MUTED,
        OCHRE,
        RED,
        label_ends,
        name_axes,
        note,
        panels,
    )

    figure, (left, middle, right) = panels(1, 3, (9.6, 3.2))
    paths = finding.lines["paths"]
    t = np.arange(1, 601)
    left.axhline(0, color=MUTED, linewidth=0.8)
    left.plot(paths["naive"], color=RED, linewidth=1.8)
    left.plot(paths["fafed"], color=BLUE, linewidth=1.8)
    for closed in (naive_closed(t), fafed_closed(t[:560])):
        left.plot(t[: len(closed)], closed, color=INK, linewidth=0.9, linestyle=DASH)
    note(left, "naive adaptive FedAvg", (10, 25.5), RED)
    note(left, "FAFED", (330, 7.2), BLUE)
    note(left, "dashed: closed forms", (330, 13.5), INK)
    name_axes(left, "Away and towards", "Step", "Mean model; the optimum is 0")

    drifts = finding.lines["drifts"]
    rho = np.linspace(0, 16, 200)
    middle.axhline(0, color=MUTED, linewidth=0.8)
    middle.axvline(6, color=MUTED, linewidth=0.8, linestyle=DASH)
    middle.plot(rho, drift_closed(rho), color=INK, linewidth=0.9, linestyle=DASH)
    for r, d in zip(drifts["rho"], drifts["measured"], strict=True):
        hue = MUTED if abs(d) < 1e-9 else RED if d > 0 else BLUE
        middle.plot(r, d, "o", color=hue, markersize=4.5)
    note(middle, "away", (1.8, 0.2), RED)
    note(middle, "towards", (10, 0.015), BLUE)
    note(middle, "rho = 6", (6.3, 0.25))
    name_axes(middle, "The naive method with a floor", "rho", "Drift per step / eta")

    right.axhline(0, color=MUTED, linewidth=0.8)
    labels = []
    hues = (GREEN, BLUE, OCHRE, RED)
    for (q, ends), hue in zip(finding.lines["traces"].items(), hues, strict=True):
        values = ends[: 1000 // int(q) + 1]
        right.plot(np.arange(len(values)) * int(q), values, color=hue, linewidth=1.8)
        labels.append((f"q = {q}", float(values[-1]), hue))
    right.set_xlim(0, 1000)
    label_ends(right, labels)
    note(right, f"eta = {ETA}, alpha = 0.9", (330, 9))
    name_axes(right, "FAFED stalls as q grows", "Step", "Model after each round")
    return {NAME: figure}
