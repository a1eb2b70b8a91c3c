"""Curves: runs that differ only in their seed, and what they measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fafed.core.run_data import RunData, flatten, show
from fafed.errors import ConfigError
from fafed.report.numbers import listing
from fafed.report.quantities import AXES, Quantity

# Runs that differ only in these settings belong to the same curve.
NOT_SETTINGS = ("seed", "name", "python.initial")  # a model may begin at its seed
ABSENT = "default"  # a setting that one run gives and another leaves out


@dataclass(frozen=True)
class Series:
    """One quantity of one curve: a row of values, one per seed, at each measured round."""

    costs: dict[str, list[float]]  # by axis, the mean over seeds
    values: list[list[float]]

    @cached_property
    def mean(self) -> list[float]:
        return [statistics.fmean(row) for row in self.values]

    @cached_property
    def low(self) -> list[float]:
        return [min(row) for row in self.values]

    @cached_property
    def high(self) -> list[float]:
        return [max(row) for row in self.values]

    def finite(self) -> Series:
        """The series without rounds in which a seed had diverged. These cannot be drawn."""
        keep = [i for i, row in enumerate(self.values) if all(map(math.isfinite, row))]
        costs = {axis: [column[i] for i in keep] for axis, column in self.costs.items()}
        return Series(costs, [self.values[i] for i in keep])


@dataclass(frozen=True)
class Curve:
    label: str
    settings: dict[str, object]  # flat, without seed and name
    runs: tuple[RunData, ...]  # one per seed, none without records
    diverged: bool  # whether a seed diverged, perhaps before its first record

    @property
    def rounds(self) -> int:
        """The last round that every seed has reached. Later rounds are left out."""
        return min(int(run.records[-1]["round"]) for run in self.runs)

    @property
    def baseline(self) -> bool:
        """Whether these are runs without a federation: `training.baselines`."""
        return bool(self.settings.get("baseline"))

    @cached_property
    def records(self) -> list[list[dict[str, Any]]]:
        """At each round that every seed has, the record of each seed."""
        by_round = [{int(r["round"]): r for r in run.records} for run in self.runs]
        common = sorted(set.intersection(*(set(rounds) for rounds in by_round)))
        return [[rounds[i] for rounds in by_round] for i in common]

    def series(self, quantity: Quantity) -> Series:
        rows = [
            (row, [float(v) for v in values if v is not None])
            for row in self.records
            if None not in (values := [quantity.read(record) for record in row])
        ]
        costs = {
            key: [statistics.fmean(axis.read(record) for record in row) for row, _ in rows]
            for key, axis in AXES.items()
        }
        return Series(costs, [values for _, values in rows])


def make_curves(runs: Sequence[RunData]) -> list[Curve]:
    """Curves in the order of their first run."""
    if not runs:
        raise ConfigError("there are no runs to report: name at least one run directory")
    if not any(run.records for run in runs):
        names = listing([run.name for run in runs])
        if all(run.failure for run in runs):
            raise ConfigError(f"all diverged in their first round ({names}): try a smaller eta")
        raise ConfigError(f"no round is finished in {names}: report again after the first round")
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        key = repr(sorted((name, show(value)) for name, value in _settings(run).items()))
        groups.setdefault(key, []).append(run)
    begun = [group for group in groups.values() if any(run.records for run in group)]
    settings = [_settings(group[0]) for group in begun]
    labels = _labels([_algorithm(group[0]) for group in begun], settings)
    return [
        Curve(label, settings, _one_per_seed(group), any(run.failure for run in group))
        for label, settings, group in zip(labels, settings, begun, strict=True)
    ]


def _settings(run: RunData) -> dict[str, object]:
    return {k: v for k, v in flatten(run.config).items() if k not in NOT_SETTINGS}


def _algorithm(run: RunData) -> str:
    settings = flatten(run.config)
    return show(settings.get("algorithm.name", settings.get("algorithm", run.name)))


def _one_per_seed(runs: list[RunData]) -> tuple[RunData, ...]:
    """Keep the longest run of each seed. A repeated seed would make the spread too small."""
    kept: dict[object, RunData] = {}
    for i, run in enumerate(run for run in runs if run.records):
        seed = run.config.get("seed", f"run {i}")
        if seed not in kept or len(run.records) > len(kept[seed].records):
            kept[seed] = run
    return tuple(kept.values())


def differing(settings: Sequence[dict[str, object]]) -> list[str]:
    """The keys whose values differ, in order of appearance."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({show(one.get(key, ABSENT)) for one in settings}) > 1]


def _labels(algorithms: list[str], settings: list[dict[str, object]]) -> list[str]:
    labels = []
    for algorithm, own in zip(algorithms, settings, strict=True):
        rivals = [s for a, s in zip(algorithms, settings, strict=True) if a == algorithm]
        keys = differing(rivals)
        short = _short(keys)
        parts = [f"{short[key]}={show(own.get(key, ABSENT))}" for key in keys]
        labels.append(f"{algorithm} {', '.join(parts)}".strip())
    return labels


def _short(keys: list[str]) -> dict[str, str]:
    """The last part of each key, "partition" for "data.partition.kind"; the whole if ambiguous."""

    def last(key: str) -> str:
        parts = key.split(".")
        return parts[-2] if parts[-1] in ("name", "kind") and len(parts) > 1 else parts[-1]

    lasts = [last(key) for key in keys]
    return {key: last(key) if lasts.count(last(key)) == 1 else key for key in keys}


def remarks(runs: Sequence[RunData], curves: Sequence[Curve]) -> list[str]:
    """What a reader must know to understand the numbers."""
    notes = []
    empty = [run.name for run in runs if not run.records]
    if empty:
        notes.append(f"Left out, because no round is finished: {listing(empty)}.")
    kept = {id(run) for curve in curves for run in curve.runs}
    repeated = [run.name for run in runs if run.records and id(run) not in kept]
    if repeated:
        notes.append(f"Left out, because their seed is already there: {listing(repeated)}.")
    notes += [f"{run.name} diverged: {run.failure}" for run in runs if run.failure]
    stopped = [run for curve in curves for run in curve.runs if not run.finished]
    unfinished = [run.name for run in stopped if run.failure is None]
    if unfinished:
        notes.append(f"Not finished: {listing(unfinished)}.")
    for curve in curves:
        longest = max(int(run.records[-1]["round"]) for run in curve.runs)
        if longest != curve.rounds:
            notes.append(
                f"{curve.label}: its seeds stopped at different rounds; means are over the "
                f"{curve.rounds:,} rounds that all of them have (the longest has {longest:,})."
            )
    if len({curve.rounds for curve in curves}) > 1:
        notes.append("The curves have different numbers of rounds; each counts to its own end.")
    return notes + _private(curves)


def epsilon_of(curve: Curve) -> float | None:
    """The largest epsilon that a run of the curve has spent; None if one promises nothing."""
    spent = [run.records[-1]["diagnostics"].get("epsilon") for run in curve.runs]
    return None if None in spent else max(spent)


def _private(curves: Sequence[Curve]) -> list[str]:
    spent = [epsilon_of(curve) for curve in curves]
    found = [one for one in spent if one is not None]
    if not found:
        return []
    deltas = {show(c.settings["privacy.delta"]) for c in curves if "privacy.delta" in c.settings}
    at = f" at delta {listing(sorted(deltas))}" if deltas else ""
    notes = [f"Epsilon is what the worst client has spent{at}. Of a simulation it protects nobody."]
    if len(found) < len(spent) or max(found) > 1.01 * min(found):
        notes.append("The curves have not spent the same epsilon: they are not equally private.")
    return notes
