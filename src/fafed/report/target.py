"""The cost of reaching a target: rounds, gradients, bytes and seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fafed.errors import ConfigError
from fafed.report.curves import Curve
from fafed.report.numbers import Stat
from fafed.report.quantities import AXES, Quantity

WAY = 0.9  # the automatic target: this share of the way from the start to the best end
METHODS = 3  # at least so many methods reach the automatic target, or all that improve


@dataclass(frozen=True)
class Target:
    quantity: Quantity
    value: float
    rule: str  # where the value comes from, in words

    def met(self, value: float) -> bool:
        return value >= self.value if self.quantity.higher else value <= self.value


@dataclass(frozen=True)
class Reach:
    """How many seeds of a curve reached the target and, if all did, their costs until then."""

    label: str
    seeds: int
    reached: int
    costs: dict[str, Stat]  # by axis; empty unless every seed reached the target
    baseline: bool = False  # a reference, which does not compete with methods


def choose_target(
    curves: Sequence[Curve], quantity: Quantity, value: float | None = None
) -> Target | None:
    """The given target, or else one by a rule; None if the quantity never improved."""
    ends = [series for curve in curves if (series := curve.series(quantity).finite()).values]
    if value is not None:
        if not math.isfinite(value) or (quantity.share and not 0 <= value <= 1):
            cure = "give a share between 0 and 1 (85 % is 0.85)" if quantity.share else "be finite"
            raise ConfigError(f"target for {quantity.title.lower()} is {value}: it must {cure}")
        return Target(quantity, value, "as asked for") if ends else None
    if not ends:
        return None
    start = statistics.fmean(series.mean[0] for series in ends)
    best = (max if quantity.higher else min)(series.mean[-1] for series in ends)
    if best == start or (best > start) != quantity.higher:
        return None  # nothing improved, so there is no target
    way = start + WAY * (best - start)
    rule = (
        f"{100 * WAY:.0f} % of the way from where the curves start "
        f"({quantity.text(start)} on average) to the best final value ({quantity.text(best)})"
    )
    better = max if quantity.higher else min
    reached = sorted(
        (value for curve in curves if (value := _attained(curve, quantity)) is not None),
        reverse=quantity.higher,
    )
    gained = [value for value in reached if value != start and better(value, start) == value]
    few = gained[:METHODS]
    if few and better(way, few[-1]) == way != few[-1]:  # too hard for some of them
        way = few[-1]
        rule = f"the hardest that {len(few)} methods reach with every seed"
    return Target(quantity, _rounded(way, quantity), f"chosen automatically: {rule}")


def _attained(curve: Curve, quantity: Quantity) -> float | None:
    """The best value that every seed of the curve reaches; None if a seed has none."""
    best, worst = (max, min) if quantity.higher else (min, max)
    seeds = []
    for run in curve.runs:
        read = (quantity.read(r) for r in run.records if r["round"] <= curve.rounds)
        values = [value for value in read if value is not None and math.isfinite(value)]
        if not values:
            return None
        seeds.append(best(values))
    return worst(seeds)


def _rounded(value: float, quantity: Quantity) -> float:
    """Round to three digits, towards the easier side, so that the target stays reachable."""
    if value == 0:
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    steps = value / unit
    easier = math.floor(steps + 1e-9) if quantity.higher else math.ceil(steps - 1e-9)
    return round(easier * unit, 12)


def reaches(curves: Sequence[Curve], target: Target) -> list[Reach]:
    return [_reach(curve, target) for curve in curves]


def _reach(curve: Curve, target: Target) -> Reach:
    firsts = []
    for run in curve.runs:
        for record in run.records:
            value = target.quantity.read(record)
            if value is not None and target.met(value) and record["round"] <= curve.rounds:
                firsts.append(record)
                break
    costs = {}
    if len(firsts) == len(curve.runs):
        costs = {
            key: Stat.from_values([axis.read(r) for r in firsts]) for key, axis in AXES.items()
        }
    return Reach(curve.label, len(curve.runs), len(firsts), costs, curve.baseline)
