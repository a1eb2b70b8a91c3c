"""A job of the literature, made small: CIFAR-10 and a ResNet with GroupNorm.

Each method has three trials of its step size with seed 0, judged on held-out data, and the best one
is measured with seeds 1 to 3 on the test set. Each run that ends is written to cifar.json at once,
so the measurement may be stopped at any time and goes on later:

    python -m studies.which_algorithm.cifar
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fafed import files
from fafed.experiments.config import Experiment
from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import ROOT, SEEDS, TUNING_SEED, Setting
from studies.which_algorithm.measurement import Runs, accuracy, held_out, made_with

RESULTS = Path(__file__).parent / "cifar.json"
JOBS = ("cifar-dirichlet-0.1", "cifar-dirichlet-0.6", "cifar-silos")

# The first step sizes, which fall. Neighbours differ by a factor of two or about three.
GRIDS: dict[str, list[Setting]] = {
    "fedavg": [(("eta", eta), ("server_momentum", 0.9)) for eta in (0.01, 0.03, 0.1)],
    "scaffoldm": [(("eta", eta),) for eta in (0.1, 0.3, 1.0)],
    "fedcm": [(("eta", eta),) for eta in (0.1, 0.3, 1.0)],
    "fedadam": [(("eta", eta), ("eta_g", 0.01)) for eta in (0.03, 0.1, 0.3)],
    "feddyn": [(("eta", eta), ("mu", 0.1)) for eta in (0.03, 0.1, 0.3)],
    "fedmuon": [(("eta", eta),) for eta in (0.003, 0.01, 0.03)],
    "fedadamw": [(("eta", eta),) for eta in (0.001, 0.003, 0.01)],
    "fafed": [(("eta", eta), ("alpha", 0.9)) for eta in (0.001, 0.003, 0.01)],
    "fedkron": [(("eta", eta),) for eta in (0.09, 0.18, 0.36)],
}

Wanted = tuple[str, Setting, int]  # method, setting, seed


@cache
def experiment(job: str) -> Experiment:
    return Experiment.read(jobs.EXPERIMENTS / f"{job}.toml")


def run(job: str, name: str, setting: Setting, seed: int) -> Experiment:
    """Runs that choose evaluate a few times; the others at the end alone."""
    own = experiment(job)
    if seed != TUNING_SEED:
        own = own.changed(eval_every=own.rounds)
    return jobs.with_setting(own, name, setting, "linear").changed(seed=seed)


class Found:
    """The runs that have ended: job -> a list of them."""

    def __init__(self, content: dict[str, Any] | None = None) -> None:
        self.content = content or {"runs": {job: [] for job in JOBS}}

    @classmethod
    def read(cls, path: Path) -> Found:
        return cls(json.loads(path.read_text("utf-8")) if path.is_file() else None)

    def of(self, job: str, name: str, setting: Setting, seed: int) -> dict[str, Any] | None:
        wanted = {"method": name, "setting": dict(setting), "seed": seed}
        return next((r for r in self.content["runs"][job] if wanted.items() <= r.items()), None)

    def trials(self, job: str, name: str) -> list[dict[str, Any]]:
        found = (self.of(job, name, setting, TUNING_SEED) for setting in GRIDS[name])
        return [entry for entry in found if entry is not None]

    def chosen(self, job: str, name: str) -> Setting | None:
        """The best trial on held-out data, when all trials are there."""
        trials = self.trials(job, name)
        if len(trials) < len(GRIDS[name]):
            return None
        best = max(trials, key=lambda entry: entry["held_out"] or 0)
        return tuple(best["setting"].items())

    def measured(self, job: str, name: str) -> list[float | None]:
        """The accuracies of the chosen setting, one for each seed that has ended."""
        setting = self.chosen(job, name)
        found = (self.of(job, name, setting, seed) for seed in SEEDS) if setting else ()
        return [entry["accuracy"] for entry in found if entry is not None]

    def missing(self, job: str) -> Iterator[Wanted]:
        """The runs of a job that have not ended: first all trials, then seed by seed."""
        for i in range(max(map(len, GRIDS.values()))):
            for name, settings in GRIDS.items():
                if i < len(settings) and not self.of(job, name, settings[i], TUNING_SEED):
                    yield name, settings[i], TUNING_SEED
        for seed in SEEDS:
            for name in GRIDS:
                setting = self.chosen(job, name)
                if setting and not self.of(job, name, setting, seed):
                    yield name, setting, seed

    def complete(self, job: str) -> bool:
        return all(len(self.measured(job, name)) == len(SEEDS) for name in GRIDS)


def measure(root: Path, path: Path, wanted_jobs: tuple[str, ...] = JOBS) -> None:
    """Make one missing run after the other, and write each down."""
    found, make = Found.read(path), Runs(root, 1)
    for job in wanted_jobs:
        while (wanted := next(found.missing(job), None)) is not None:
            name, setting, seed = wanted
            words = f"{job}, {name}, {dict(setting)}, seed {seed}"
            (place,) = make(words, {wanted: run(job, *wanted)}).values()
            key, end = ("held_out", held_out) if seed == TUNING_SEED else ("accuracy", accuracy)
            entry = {"method": name, "setting": dict(setting), "seed": seed, key: end(place)}
            found.content["runs"][job].append(entry)
            found.content.update(made_with(place))
            files.write(path, [(json.dumps(found.content, indent=1) + "\n").encode()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "which-algorithm")
    parser.add_argument("jobs", nargs="*", choices=[[], *JOBS], default=list(JOBS))
    options = parser.parse_args()
    measure(options.runs, RESULTS, tuple(options.jobs))


if __name__ == "__main__":
    main()
