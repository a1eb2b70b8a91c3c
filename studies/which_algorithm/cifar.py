"""A job of the literature, made small: CIFAR-10 and a ResNet with GroupNorm.

Each method has three trials of its step size with seed 0, judged on held-out data, and the best one
is measured with seeds 1 to 3 on the test set. Each run that ends adds a line to cifar.jsonl. So the
measurement may be stopped at any time and goes on later:

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

RESULTS = Path(__file__).parent / "cifar.jsonl"
JOBS = ("cifar-dirichlet-0.6", "cifar-dirichlet-0.1", "cifar-silos")

FEDAVGM = "fedavgm"  # FedAvg with momentum on the server
KNOWN = ("fedavg", FEDAVGM, "scaffold", "fedcm", "fedadam")  # what papers compare with
OURS = ("fafed", "fedkron")
BEST = (
    "fedmuon",
    "scaffoldm",
)  # of the others, the two best ones in the mean of the three settings

# The first step sizes, which fall. Neighbours differ by a factor of two or about three.
GRIDS: dict[str, list[Setting]] = {
    "fedavg": [(("eta", eta),) for eta in (0.1, 0.3, 1.0)],
    FEDAVGM: [(("eta", eta), ("server_momentum", 0.9)) for eta in (0.01, 0.03, 0.1)],
    "scaffold": [(("eta", eta),) for eta in (0.1, 0.3, 1.0)],
    "fedcm": [(("eta", eta),) for eta in (0.1, 0.3, 1.0)],
    "fedadam": [(("eta", 0.1), ("eta_g", eta)) for eta in (0.003, 0.01, 0.03)],
    "fafed": [(("eta", eta), ("alpha", 0.9)) for eta in (0.001, 0.003, 0.01)],
    "fedkron": [(("eta", eta),) for eta in (0.09, 0.18, 0.36)],
    "fedmuon": [(("eta", eta),) for eta in (0.003, 0.01, 0.03)],
    "scaffoldm": [(("eta", eta),) for eta in (0.1, 0.3, 1.0)],
}
VARIED = {"fedadam": "eta_g"}  # of the others, eta

Wanted = tuple[str, Setting, int]  # method, setting, seed


@cache
def experiment(job: str) -> Experiment:
    return Experiment.read(jobs.EXPERIMENTS / f"{job}.toml")


def algorithm(name: str) -> str:
    """The method's name in the library."""
    return "fedavg" if name == FEDAVGM else name


def run(job: str, name: str, setting: Setting, seed: int) -> Experiment:
    return jobs.with_setting(experiment(job), algorithm(name), setting, "linear").changed(seed=seed)


class Found:
    """The runs that have ended: one line of the file for each."""

    def __init__(self, runs: list[dict[str, Any]] | None = None) -> None:
        self.runs = runs or []

    @classmethod
    def read(cls, path: Path) -> Found:
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        return cls([json.loads(line) for line in lines])

    def write(self, path: Path) -> None:
        files.write(path, [(json.dumps(run) + "\n").encode() for run in self.runs])

    def of(self, job: str, name: str, setting: Setting, seed: int) -> dict[str, Any] | None:
        wanted = {"job": job, "method": name, "setting": dict(setting), "seed": seed}
        return next((run for run in self.runs if wanted.items() <= run.items()), None)

    def begun(self, job: str) -> bool:
        return any(run["job"] == job for run in self.runs)

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
            entry = {"job": job, "method": name, "setting": dict(setting), "seed": seed}
            found.runs.append(entry | {key: end(place)} | made_with(place))
            found.write(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "which-algorithm")
    parser.add_argument("--only", choices=JOBS, help="one of the jobs")
    options = parser.parse_args()
    measure(options.runs, RESULTS, (options.only,) if options.only else JOBS)


if __name__ == "__main__":
    main()
