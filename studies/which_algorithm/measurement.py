"""Choose step sizes by the training loss with one seed, then measure with other seeds."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fafed.algorithms import ALGORITHMS
from fafed.experiments.config import Experiment
from fafed.experiments.grid import run_all
from fafed.experiments.rundir import RunDir
from fafed.experiments.tuning import space
from fafed.report.curves import make_curves
from fafed.report.quantities import find_quantity
from fafed.report.target import Target, reaches

ROOT = Path(__file__).parent.parent.parent
EXPERIMENTS = Path(__file__).parent / "configs"

TUNING_SEED, SEEDS = 0, (1, 2, 3)
TAIL = 5  # the last evaluations are averaged, because on skewed data single ones vary a lot
TARGETS = {"skewed": 0.75, "iid": 0.8, "partial": 0.65, "second-setting": 0.75}  # test accuracy

Step = tuple[tuple[str, float], ...]  # (("eta", 0.1),)


def measure(root: Path, jobs: int) -> dict[str, Any]:
    """Choose step sizes with one seed by the training loss, then measure with other seeds."""
    files = {part: Experiment.read(EXPERIMENTS / f"{part}.toml") for part in TARGETS}
    trials = {
        (part, name, step): experiment.with_algorithm(name, **dict(step)).changed(seed=TUNING_SEED)
        for part, experiment in files.items()
        for name in experiment.search
        for step in dict.fromkeys([*_grid(experiment, name), _default(experiment, name)])
    }
    print(f"choosing: {len(trials)} runs", flush=True)
    tried = dict(zip(trials, run_all(list(trials.values()), root, jobs), strict=True))
    losses = {key: _loss(place) for key, place in tried.items()}
    chosen = {
        (part, name): min(_grid(experiment, name), key=lambda step: losses[part, name, step])
        for part, experiment in files.items()
        for name in experiment.search
    }
    for part, name in list(chosen):
        partial = files["partial"].with_algorithm(name).algorithm_object(1)
        if part == "skewed" and not partial.requires_all_clients:
            chosen["partial", name] = chosen[part, name]
    final = {
        (part, name, seed): files[part].with_algorithm(name, **dict(step)).changed(seed=seed)
        for (part, name), step in chosen.items()
        for seed in SEEDS
    }
    print(f"measuring: {len(final)} runs", flush=True)
    places = dict(zip(final, run_all(list(final.values()), root, jobs), strict=True))

    found: dict[str, dict[str, Any]] = {part: {} for part in TARGETS}
    for (part, name), step in chosen.items():
        entry: dict[str, Any] = {"step": dict(step)}
        entry |= _measured([places[part, name, seed] for seed in SEEDS], TARGETS[part])
        if part != "partial":
            entry["trials"] = [
                {
                    "step": dict(point),
                    "train_loss": _rounded(losses[part, name, point]),
                    "accuracy": _accuracy(tried[part, name, point]),
                }
                for point in _grid(files[part], name)
            ]
            entry["default"] = _accuracy(tried[part, name, _default(files[part], name)])
        found[part][name] = entry
    made = json.loads((places["iid", "fedavg", SEEDS[0]].path / "environment.json").read_text())
    return {
        "made_with": {name: made[name] for name in ("fafed", "torch")},
        "parameters": made["parameters"],
        "seeds": {"choosing": TUNING_SEED, "measuring": list(SEEDS)},
        "targets": TARGETS,
        "measured": found,
    }


def _grid(experiment: Experiment, name: str) -> list[Step]:
    choices = space(experiment, name)
    return [
        tuple(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def _default(experiment: Experiment, name: str) -> Step:
    """The step size that the algorithm has if nobody chooses one."""
    return tuple((key, getattr(ALGORITHMS[name](), key)) for key in space(experiment, name))


def _loss(place: RunDir) -> float:
    """The training loss of the server's model at the end, by which step sizes are chosen."""
    loss = _end(place, "train", "loss")
    return math.inf if loss is None else loss


def _accuracy(place: RunDir) -> float | None:
    return _end(place, "test", "accuracy")


def _end(place: RunDir, part: str, metric: str) -> float | None:
    """Mean over the last evaluations; None if the run diverged."""
    if place.failure():
        return None
    found = [values[metric] for record in place.records() if (values := getattr(record, part))]
    return _rounded(statistics.fmean(found[-TAIL:]))


def _measured(places: Sequence[RunDir], target: float) -> dict[str, Any]:
    """Final accuracies by seed, and what it cost one client to reach the target."""
    runs = [place.data() for place in places]
    accuracy = find_quantity(runs, "accuracy")
    (curve,) = make_curves(runs)
    (reach,) = reaches([curve], Target(accuracy, target, "as asked for"))
    clients = runs[0].config["data"]["clients"]
    shares = {"rounds": 1, "gradients": clients, "bytes": clients}
    costs = {key: _rounded(reach.costs[key].mean / n) for key, n in shares.items() if reach.costs}
    return {
        "accuracy": [_accuracy(place) for place in places],
        "last": [_rounded(run.records[-1]["test"].get("accuracy", math.nan)) for run in runs],
        "reached": reach.reached,
        "to_target": costs,
    }


def _rounded(value: float) -> float | None:
    """The number to six digits; None for infinity and NaN, which JSON cannot hold."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
