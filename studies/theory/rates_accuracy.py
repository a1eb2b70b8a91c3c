"""Protocol C: the cost of an accuracy in steps, samples, rounds and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fafed.report.numbers import size as bytes_shown
from studies.theory import fits, protocols
from studies.theory.findings import Table
from studies.theory.fits import Estimate
from studies.theory.problems import Robust
from studies.theory.protocols import FITTED, METHODS, N, Q

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = ("steps", "samples", "rounds", "bytes")


def growing_q(method: str, T: int) -> int:
    """Local steps that the theories allow: (T/N^2)^(1/3), for FedAvg T^(1/4)/N^(3/4)."""
    if method == "FedAvg":
        return max(1, round(float(T ** (1 / 4) / N ** (3 / 4))))
    return max(1, round(float((T / N**2) ** (1 / 3))))


class Costs(NamedTuple):
    table: Table
    slopes_table: Table
    accuracy: dict[str, NDArray[np.float64]]  # label -> mean gradient norm at every horizon
    spent: dict[str, dict[str, NDArray[np.float64]]]  # label -> axis -> cost at every horizon
    slopes: dict[str, dict[str, Estimate]]
    fine: float  # the two accuracies of the table
    coarse: float
    needed: dict[tuple[str, float], dict[str, float | None]]


def costs(
    horizons: Sequence[int],
    fixed: dict[str, NDArray[np.float64]],
    growing_horizons: Sequence[int],
    growing: dict[tuple[str, int], NDArray[np.float64]],
) -> Costs:
    """From the results of `protocols.Horizons`, by method, and by method and horizon."""
    accuracy, spent, slopes = {}, {}, {}
    for m in METHODS:
        longer = np.stack([growing[m, T][1, 0] for T in growing_horizons])
        qs = [growing_q(m, T) for T in growing_horizons]
        for label, norms, Ts, q in (
            (m, fixed[m][1], horizons, [Q] * len(horizons)),
            (f"{m}, q growing", longer, growing_horizons, qs),
        ):
            accuracy[label] = norms.mean(-1)
            spent[label] = _spent(m, Ts, q)
            last = norms[-FITTED:]
            slopes[label] = {
                axis: fits.bootstrap(last, _cost_slope(cost[-FITTED:]))
                for axis, cost in spent[label].items()
            }
    fine = _common_accuracy([accuracy[m] for m in METHODS])
    coarse = 2 * fine
    needed = {
        (label, eps): {
            axis: _needed(accuracy[label], cost, eps) for axis, cost in spent[label].items()
        }
        for eps in (coarse, fine)
        for label in accuracy
    }
    slopes_table = Table(
        "Powers of the accuracy",
        ("algorithm", "steps per client", "samples", "rounds", "bytes"),
        [(label, *(str(by_axis[axis]) for axis in AXES)) for label, by_axis in slopes.items()],
        "Cost ~ accuracy to this power. With q fixed all four costs are multiples of each other. "
        "Theory for q fixed: -3 for STEM and FAFED, -4 for FedAvg, in every column; for q growing "
        "like (T/N^2)^(1/3): -2 in rounds and bytes; for FedAvg with q growing like "
        "T^(1/4)/N^(3/4): -3.",
    )
    table = _cost_table(needed)
    return Costs(table, slopes_table, accuracy, spent, slopes, fine, coarse, needed)


def _cost_slope(cost: NDArray[np.float64]) -> Callable[[Any], Any]:
    return lambda mean: fits.slope(mean, np.broadcast_to(cost[:, None], mean.shape))


def _spent(method: str, Ts: Sequence[int], qs: Sequence[int]) -> dict[str, Any]:
    """What a run of each horizon costs; samples and bytes as the library's engine counts them."""
    costs: dict[str, list[float]] = {axis: [] for axis in AXES}
    for T, q in zip(Ts, qs, strict=True):
        run = Robust(clients=N).run(protocols.algorithm(method, 0.1, 0.1), rounds=2, q=q)
        one, two = run
        rounds = -(-T // q)

        def total(name: str, one: Any = one, two: Any = two, rounds: int = rounds) -> float:
            first, second = getattr(one, name), getattr(two, name)
            return float(first + (rounds - 1) * (second - first))

        costs["steps"].append(rounds * q)
        costs["samples"].append(total("samples"))
        costs["rounds"].append(rounds)
        costs["bytes"].append(total("bytes_up") + total("bytes_down"))
    return {axis: np.array(values, float) for axis, values in costs.items()}


def _common_accuracy(curves: Sequence[NDArray[np.float64]]) -> float:
    """The finest accuracy, of two digits, that every curve reaches."""
    worst = max(float(curve.min()) for curve in curves)
    digits = 1 - int(np.floor(np.log10(worst)))
    return float(np.ceil(worst * 10**digits) / 10**digits)


def _needed(accuracy: NDArray[np.float64], cost: NDArray[np.float64], eps: float) -> float | None:
    """The cost at which the curve reaches eps, interpolated between horizons on log scales."""
    order = np.argsort(accuracy)
    if not accuracy[order[0]] <= eps <= accuracy[order[-1]]:
        return None
    return float(np.exp(np.interp(np.log(eps), np.log(accuracy[order]), np.log(cost[order]))))


def _cost_table(needed: dict[tuple[str, float], dict[str, float | None]]) -> Table:
    rows = []
    for (label, eps), cost in needed.items():
        *counts, sent = cost.values()
        whole = [None if count is None else round(count) for count in counts]
        rows.append((eps, label, *whole, None if sent is None else bytes_shown(sent)))
    return Table(
        "The cost of an accuracy (protocol C)",
        (
            "mean gradient norm",
            "algorithm",
            "steps per client",
            "samples, all clients",
            "rounds",
            "bytes, all clients",
        ),
        rows,
        "From the runs of protocol A, interpolated between horizons; a dash is out of their reach. "
        "Samples count every gradient evaluation, two per step for STEM and FAFED.",
    )


def ratios(costs: Costs, eps: float) -> dict[str, float]:
    """FAFED's costs over FedAvg's."""
    fafed, fedavg = costs.needed["FAFED", eps], costs.needed["FedAvg", eps]
    return {axis: (fafed[axis] or math.inf) / (fedavg[axis] or math.inf) for axis in AXES}


def draw(costs: Costs) -> Figure:
    from studies.theory.figures import DASH, HUES, log_axes, name_axes, panels

    figure, axes = panels(1, 4, (9.6, 3.1))
    titles = {
        "steps": "Steps per client",
        "samples": "Samples, all clients",
        "rounds": "Rounds",
        "bytes": "Bytes, all clients",
    }
    for axis, key in zip(axes, AXES, strict=True):
        for label, values in costs.accuracy.items():
            m, growing = label.split(",")[0], "," in label
            axis.plot(
                values,
                costs.spent[label][key],
                color=HUES[m],
                linestyle=DASH if growing else "-",
                linewidth=1.5,
                marker="" if growing else "o",
                markersize=3.5,
            )
        axis.invert_xaxis()
        log_axes(axis, (0.5, 0.2, 0.1), steps=False)
        name_axes(axis, titles[key], "Mean gradient norm")
    lines = axes[0].get_lines()
    names = [*METHODS, "q fixed", "q growing\nwith T"]
    handles = [*lines[::2], *(_line(style) for style in ("-", DASH))]
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _line(style: Any) -> Any:
    from matplotlib.lines import Line2D

    from studies.theory.figures import MUTED

    return Line2D([], [], color=MUTED, linestyle=style, linewidth=1.5)
