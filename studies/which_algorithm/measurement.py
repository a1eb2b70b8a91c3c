"""Choose settings on held-out data with one seed, then measure with other seeds."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fafed.core.records import Record
from fafed.experiments.config import Experiment
from fafed.experiments.grid import run_all
from fafed.experiments.rundir import RunDir
from fafed.report.curves import make_curves
from fafed.report.quantities import find_quantity
from fafed.report.target import Target, reaches
from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import (
    ELSEWHERE,
    JOBS,
    ONE_SEED,
    POOLED,
    SEEDS,
    TARGETS,
    TUNING_SEED,
    Setting,
)

TAIL = 3  # evaluations on held-out data of which the mean counts: single ones vary a lot
LONGEST = 60  # rounds of a method that sends less than FedAvg, at equal bytes
ABOUT_EQUAL = 0.05  # a difference in cost that is not worth a run of another length
WORTH = 0.02  # a default is replaced if it costs so much more than the rule's

Key = tuple[Any, ...]
Pair = tuple[str, str]  # a job and a method


class Runs:
    """Makes the runs that are not there yet. With `collect` it makes none, and returns those that
    have ended."""

    def __init__(self, root: Path, processes: int, *, collect: bool = False) -> None:
        self.root, self.processes, self.collect = root, processes, collect

    def __call__(self, what: str, wanted: Mapping[Key, Experiment]) -> dict[Key, RunDir]:
        if self.collect:
            there = {key: RunDir.for_experiment(e, self.root) for key, e in wanted.items()}
            there = {k: place for k, place in there.items() if place.finished() or place.failure()}
            print(f"{what}: {len(there)} of {len(wanted)} runs have ended", flush=True)
            return there
        print(f"{what}: {len(wanted)} runs", flush=True)
        places = run_all(list(wanted.values()), self.root, self.processes, threads=1)
        return dict(zip(wanted, places, strict=True))


def measure(make: Runs, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything; or with earlier results what they lack: methods, and cells of other jobs."""
    known = known or {}
    old = known.get("measured", {})
    new = [(job, name) for job, name in _pairs() if name not in old.get(job, {})]
    new = [] if make.collect else new  # a method is added with all its runs
    trials = _merged(known.get("trials", {}), choose(make, new))
    tuned = measure_tuned(make, trials, new)
    defaults = {name: rule(trials, name) for name in jobs.names("iid") if name in trials["iid"]}
    untuned = measure_untuned(make, defaults, new)
    equal = measure_equal(make, trials, new)
    for job, name in new:
        tuned[job][name] |= {"equal": equal[job][name]} | untuned[job][name]
    if not known:
        known = made_with(
            RunDir.for_experiment(_tuned("iid", "fedavg", trials, SEEDS[0]), make.root)
        )
    return dict(known) | {
        "seeds": {"choosing": TUNING_SEED, "measuring": list(SEEDS), "one": ONE_SEED},
        "targets": TARGETS,
        "trials": trials,
        "defaults": defaults,
        "measured": _merged(old, tuned),
        "pooled": known.get("pooled") or pooled(make),
        "elsewhere": elsewhere(make, defaults, known.get("elsewhere", {})),
    }


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Job by job, the methods in the order of the study."""
    return {
        job: {n: found[n] for n in jobs.names(job) if n in found}
        for job in JOBS
        for found in [{**old.get(job, {}), **new.get(job, {})}]
    }


def made_with(place: RunDir) -> dict[str, Any]:
    made = json.loads((place.path / "environment.json").read_text("utf-8"))
    return {
        "made_with": {name: made[name] for name in ("fafed", "torch")},
        "parameters": made["parameters"],
    }


# Choosing: one seed, held-out data.


Trials = dict[str, dict[str, list[dict[str, Any]]]]


def settings(name: str, job: str) -> list[Setting]:
    """The grid, and the default before the rule if it is not in it."""
    return list(dict.fromkeys([*jobs.grid(job, name), jobs.before(name)]))


def choose(make: Runs, pairs: Sequence[Pair]) -> Trials:
    """Every trial's accuracy on held-out data, with a step size that falls."""
    wanted = {
        (job, name, setting): jobs.run(job, name, setting, "linear", TUNING_SEED)
        for job, name in pairs
        for setting in settings(name, job)
    }
    places = make("choosing", wanted)
    trials: Trials = {job: {} for job in JOBS}
    for (job, name, setting), place in places.items():
        entry = {"setting": dict(setting), "accuracy": held_out(place)}
        trials[job].setdefault(name, []).append(entry)
    return trials


def rule(trials: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The setting of the grid with the smallest worst loss to the best of the grid over the
    jobs."""
    tables = [trials[job][name] for job in JOBS if name in trials[job]]
    size = len(jobs.grid(JOBS[0], name))

    def losses(i: int) -> list[float]:
        return [
            max(trial["accuracy"] or 0 for trial in table[:size]) - (table[i]["accuracy"] or 0)
            for table in tables
        ]

    first = tables[0]
    chosen = min(range(size), key=lambda i: max(losses(i)))
    old = next(i for i, trial in enumerate(first) if trial["setting"] == dict(jobs.before(name)))
    return {
        "rule": first[chosen]["setting"],
        "rule_loss": _rounded(max(losses(chosen))),
        "before": first[old]["setting"],
        "before_loss": _rounded(max(losses(old))),
    }


def new_default(defaults: Mapping[str, Any], name: str) -> Setting:
    """The rule's, unless the old one is about as good."""
    entry = defaults[name]
    better = entry["before_loss"] - entry["rule_loss"] > WORTH
    return tuple(entry["rule" if better else "before"].items())


def best(trials: Mapping[str, Any], job: str, name: str) -> Setting:
    """The setting of the grid with the highest accuracy on held-out data."""
    table = trials[job][name][: len(jobs.grid(job, name))]
    return tuple(max(table, key=lambda trial: trial["accuracy"] or 0)["setting"].items())


def _tuned(job: str, name: str, trials: Mapping[str, Any], seed: int) -> Experiment:
    return jobs.run(job, name, best(trials, job, name), "linear", seed)


# Measuring: other seeds, the test set.


def _pairs() -> list[Pair]:
    return [(job, name) for job in JOBS for name in jobs.names(job)]


def _tuned_runs(make: Runs, trials: Trials, pairs: Sequence[Pair]) -> dict[Key, RunDir]:
    wanted = {(j, n, seed): _tuned(j, n, trials, seed) for j, n in pairs for seed in SEEDS}
    return make("measuring", wanted)


def measure_tuned(make: Runs, trials: Trials, pairs: Sequence[Pair]) -> dict[str, Any]:
    places = _tuned_runs(make, trials, pairs)
    found: dict[str, dict[str, Any]] = {job: {} for job in JOBS}
    for j, n in pairs:
        ends = measured([places[j, n, seed] for seed in SEEDS], TARGETS[j])
        found[j][n] = {"setting": dict(best(trials, j, n)), **ends}
    return found


def measure_equal(make: Runs, trials: Trials, pairs: Sequence[Pair]) -> dict[str, Any]:
    """The same settings with as many rounds as FedAvg's gradients and bytes allow."""
    places = _tuned_runs(make, trials, pairs)
    reference = make(
        "FedAvg's costs",
        {(j,): _tuned(j, "fedavg", trials, SEEDS[0]) for j in dict.fromkeys(j for j, _ in pairs)},
    )
    lengths = {
        (j, n, axis): affordable(places[j, n, SEEDS[0]], reference[j,], axis)
        for j, n in pairs
        for axis in ("gradients", "bytes")
    }
    wanted = {
        key: _tuned(key[0], key[1], trials, ONE_SEED).changed(rounds=rounds)
        for key, rounds in lengths.items()
    }
    ends = make("measuring at equal costs", wanted)
    found: dict[str, Any] = {job: {} for job in JOBS}
    for (j, n, axis), rounds in lengths.items():
        end = accuracy(ends[j, n, axis])
        found[j].setdefault(n, {})[axis] = {"rounds": rounds, "accuracy": end}
    return found


def measure_untuned(
    make: Runs, defaults: Mapping[str, Any], pairs: Sequence[Pair]
) -> dict[str, Any]:
    """The defaults, falling over the run. On skewed data also as they come: constant."""
    chosen = {name: new_default(defaults, name) for name in defaults}
    wanted = {
        (j, n, kind): jobs.run(j, n, chosen[n], kind, ONE_SEED)
        for j, n in pairs
        for kind in (("linear", "constant") if j == JOBS[0] else ("linear",))
    }
    places = make("measuring defaults", wanted)
    found: dict[str, Any] = {job: {} for job in JOBS}
    for (j, n, kind), place in places.items():
        entry = found[j].setdefault(n, {"default": dict(chosen[n])})
        entry["untuned" if kind == "linear" else "untuned_constant"] = accuracy(place)
    return found


def affordable(place: RunDir, reference: RunDir, axis: str) -> int:
    """How many rounds cost as much as the whole run of the reference."""
    budget = _spent(reference.records()[-1], axis)
    records = place.records()
    if len(records) < 2:  # diverged at once
        return len(reference.records())
    first, last = _spent(records[0], axis), _spent(records[-1], axis)
    per_round = (last - first) / (len(records) - 1)
    rounds = 1 + math.floor((budget - first) / per_round + 1e-6)
    if abs(rounds / len(records) - 1) <= ABOUT_EQUAL:
        return len(records)
    return max(2, min(LONGEST, rounds))


def _spent(record: Record, axis: str) -> float:
    return record.gradients if axis == "gradients" else record.bytes_up + record.bytes_down


def measured(places: Sequence[RunDir], target: float) -> dict[str, Any]:
    """Final accuracies by seed, what it cost one client to reach the target, and seconds."""
    runs = [place.data() for place in places]
    quantity = find_quantity(runs, "accuracy")
    (curve,) = make_curves(runs)
    (reach,) = reaches([curve], Target(quantity, target, "as asked for"))
    clients = runs[0].config["data"]["clients"]
    shares = {"rounds": 1, "gradients": clients, "bytes": clients}
    costs = {key: _rounded(reach.costs[key].mean / n) for key, n in shares.items() if reach.costs}
    return {
        "accuracy": [accuracy(place) for place in places],
        "reached": reach.reached,
        "to_target": costs,
        "seconds": min(seconds(place.records()) for place in places),
    }


def seconds(records: Sequence[Record]) -> float:
    """Seconds of a round without its evaluation: the median, which other programs disturb least."""
    times = [0.0, *(record.seconds for record in records)]
    rounds = [later - earlier for earlier, later in itertools.pairwise(times)]
    return float(f"{statistics.median(rounds):.3g}")


# The methods for data in one place, and the jobs on which no default was chosen.


def pooled(make: Runs) -> dict[str, Any]:
    places = make(
        "choosing, pooled data",
        {
            (name, setting): jobs.run(POOLED, name, setting, "linear", TUNING_SEED)
            for name in jobs.names(POOLED)
            for setting in jobs.grid(POOLED, name)
        },
    )
    chosen = {
        name: max(jobs.grid(POOLED, name), key=lambda s: held_out(places[name, s]) or 0)
        for name in jobs.names(POOLED)
    }
    ends = make(
        "measuring, pooled data",
        {
            (name, seed): jobs.run(POOLED, name, setting, "linear", seed)
            for name, setting in chosen.items()
            for seed in SEEDS
        },
    )
    return {
        name: {
            "setting": dict(setting),
            "accuracy": [accuracy(ends[name, seed]) for seed in SEEDS],
        }
        for name, setting in chosen.items()
    }


def elsewhere(
    make: Runs, defaults: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The settings of the rule and the defaults before it on other jobs, and FedAvg tuned there.
    What is known with the same setting is not measured again."""
    tuned = {job: _tuned_elsewhere(make, job, known) for job in ELSEWHERE}
    pairs = [(job, name) for job in ELSEWHERE for name in jobs.names(job) if name in defaults]
    chosen = {(j, n, "default"): new_default(defaults, n) for j, n in pairs}
    chosen |= {(job, "fedavg", "tuned"): setting for job, setting in tuned.items() if setting}
    chosen |= {(j, n, "before"): jobs.before(n) for j, n in pairs}

    def there(job: str, name: str, which: str) -> dict[str, Any] | None:
        entry = known.get(job, {}).get(name, {}).get(which)
        return entry if entry and entry["setting"] == dict(chosen[job, name, which]) else None

    wanted = {
        (j, n, which): jobs.run(j, n, setting, "linear", ONE_SEED)
        for (j, n, which), setting in chosen.items()
        if not there(j, n, which)
    }
    ends = make("measuring, other jobs", wanted)
    found: dict[str, dict[str, Any]] = {job: {} for job in ELSEWHERE}
    for (job, name, which), setting in chosen.items():
        entry = there(job, name, which)
        if entry is None and (job, name, which) in ends:
            end = accuracy(ends[job, name, which])
            entry = {"setting": dict(setting), "accuracy": end}
        if entry is not None:
            found[job].setdefault(name, {})[which] = entry
    return found


def _tuned_elsewhere(make: Runs, job: str, known: Mapping[str, Any]) -> Setting | None:
    """FedAvg's best setting on another job, on held-out data. None if trials are missing."""
    if entry := known.get(job, {}).get("fedavg", {}).get("tuned"):
        return tuple(entry["setting"].items())
    grid = jobs.grid(job, "fedavg")
    wanted = {(s,): jobs.run(job, "fedavg", s, "linear", TUNING_SEED) for s in grid}
    places = make(f"choosing, {job}", wanted)
    if len(places) < len(grid):
        return None
    return max(grid, key=lambda setting: held_out(places[setting,]) or 0)


# One run.


def accuracy(place: RunDir) -> float | None:
    """On the test set after the last round; None if the run diverged."""
    ends = [record.test["accuracy"] for record in _records(place) if record.test]
    return _rounded(ends[-1]) if ends else None


def held_out(place: RunDir) -> float | None:
    """On held-out data, the mean of the last evaluations; None if the run diverged."""
    ends = [record.validation["accuracy"] for record in _records(place) if record.validation]
    return _rounded(statistics.fmean(ends[-TAIL:])) if ends else None


def _records(place: RunDir) -> Sequence[Record]:
    return () if place.failure() else place.records()


def _rounded(value: float) -> float | None:
    """The number to six digits; None for infinity and NaN, which JSON cannot hold."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
