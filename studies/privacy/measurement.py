"""Choose step sizes on held-out data with one seed, then measure with other seeds."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from fafed.experiments import assemble
from fafed.experiments.config import Experiment
from fafed.experiments.grid import run_all
from fafed.experiments.rundir import RunDir
from fafed.experiments.tuning import space

ROOT = Path(__file__).parent.parent.parent
CONFIGS = Path(__file__).parent / "configs"
RESULTS = Path(__file__).parent / "results.json"

DATA = ("moderate", "high")
METHODS = ("fedavg", "fedadam", "scaffold", "fafed", "fafed combined")
EPSILONS = (1.0, 2.0, 4.0, 8.0, None)
TUNING_SEED, SEEDS = 0, (1, 2, 3)
PRIVACY = {"level": "example", "clip": 1.0, "delta": 1e-5}


class Job(NamedTuple):
    data: str
    method: str
    epsilon: float | None

    @property
    def label(self) -> str:
        return f"{self.data}, {self.method}, {self.epsilon or 'none'}"


def all_jobs() -> list[Job]:
    """Without noise there is nothing to combine."""
    return [
        Job(data, method, epsilon)
        for data in DATA
        for epsilon in EPSILONS
        for method in METHODS
        if not (epsilon is None and method == "fafed combined")
    ]


def measure(root: Path, jobs: int) -> dict[str, Any]:
    noises = _noises(root / "noises.json")
    trials = {
        (job, value): _experiment(job, noises, TUNING_SEED, value)
        for job in all_jobs()
        for value in _steps(job)
    }
    print(f"choosing: {len(trials)} runs", flush=True)
    tried = dict(zip(trials, run_all(list(trials.values()), root, jobs), strict=True))
    held = {key: _end(place, "validation") for key, place in tried.items()}
    chosen = {job: max(_steps(job), key=lambda v, job=job: held[job, v]) for job in all_jobs()}
    final = {
        (job, seed): _experiment(job, noises, seed, value)
        for job, value in chosen.items()
        for seed in SEEDS
    }
    print(f"measuring: {len(final)} runs", flush=True)
    places = dict(zip(final, run_all(list(final.values()), root, jobs), strict=True))
    first = places[all_jobs()[0], SEEDS[0]]
    made = json.loads((first.path / "environment.json").read_text("utf-8"))
    return {
        "made_with": {name: made[name] for name in ("fafed", "torch")},
        "seeds": {"choosing": TUNING_SEED, "measuring": list(SEEDS)},
        "measured": [
            {
                **job._asdict(),
                "noise": noises.get(job.label),
                "step": chosen[job],
                "trials": [[value, held[job, value]] for value in _steps(job)],
                "accuracy": [_end(places[job, seed], "test") for seed in SEEDS],
                "spent": _spent(places[job, SEEDS[0]]),
            }
            for job in all_jobs()
        ],
    }


def read_results() -> dict[str, Any]:
    """The results; empty if nothing has been measured."""
    found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    return found


def _noises(path: Path) -> dict[str, float]:
    """The noise that spends each epsilon. It is kept in a file: each takes some seconds."""
    found: dict[str, float] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    for job in all_jobs():
        if job.epsilon is not None and job.label not in found:
            run = assemble.prepare(_experiment(job, {job.label: 1.0}, TUNING_SEED, None)).run
            assert run.budget is not None
            found[job.label] = run.budget.accountant.noise_for(job.epsilon, run.rounds)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found, indent=1), "utf-8")
    return found


def _read(job: Job) -> Experiment:
    return Experiment.read(CONFIGS / f"{job.data}.toml")


def _name(job: Job) -> str:
    return job.method.partition(" ")[0]


def _steps(job: Job) -> list[float]:
    (values,) = space(_read(job), _name(job)).values()
    return list(values)


def _experiment(job: Job, noises: dict[str, float], seed: int, value: float | None) -> Experiment:
    base, name = _read(job), _name(job)
    (step,) = space(base, name)
    found = base.with_algorithm(name, **({} if value is None else {step: value}))
    found = found.changed(seed=seed)
    if job.epsilon is None:
        return found
    private = PRIVACY | {"noise": round(noises[job.label] + 5e-4, 3)}  # rounded up
    if job.method == "fafed combined":
        private["combine"] = True
    return found.changed(privacy=private)


def _end(place: RunDir, part: str) -> float:
    """The last accuracy; 0 if the run diverged."""
    if place.failure():
        return 0.0
    found = [values["accuracy"] for r in place.records() if (values := getattr(r, part))]
    return round(statistics.fmean(found[-1:]), 5)


def _spent(place: RunDir) -> float | None:
    spent = place.records()[-1].diagnostics.get("epsilon") if not place.failure() else None
    return None if spent is None else round(spent, 4)
