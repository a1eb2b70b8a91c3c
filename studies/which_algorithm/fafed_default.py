"""FAFED's default: the study's rule over more options than the four trials have.

The candidates differ in eta, in the floor rho and in the server's momentum. Each is run on the
three jobs on which defaults are chosen, with a step size that falls and with a constant one. The
rule takes the candidate that loses least to the best one in the worst of these six. The other jobs
are looked at afterwards, once, with the chosen one alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fafed.experiments.config import Experiment
from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import ELSEWHERE, JOBS, ONE_SEED, TUNING_SEED, Setting
from studies.which_algorithm.measurement import Runs, accuracy, held_out

KINDS = ("linear", "constant")
ALPHA = 0.9

# eta, rho, the server's momentum
GRID = (
    *((eta, rho, 0.0) for eta, rho in ((0.003, 0.01), (0.01, 0.01), (0.01, 0.1))),
    *((eta, 0.01, 0.8) for eta in (0.001, 0.003)),
    *((eta, 0.01, 0.9) for eta in (0.0003, 0.001, 0.003)),
)

# fafed.train(model, clients, fafed.FAFED(), rounds=50): its own numbers of steps and examples.
CALLED = {"rounds": 50, "local_steps": 10, "batch_size": 50}


def candidates() -> list[Setting]:
    return [
        (("eta", eta), ("alpha", ALPHA), ("rho", rho), ("server_momentum", momentum))
        for eta, rho, momentum in GRID
    ]


def measure(make: Runs) -> list[dict[str, Any]]:
    """Every candidate's accuracies on held-out data, and its worst loss. Best first."""
    places = make(
        "choosing FAFED's default",
        {
            (job, kind, setting): jobs.run(job, "fafed", setting, kind, TUNING_SEED)
            for setting in candidates()
            for job in JOBS
            for kind in KINDS
        },
    )
    ends = {key: held_out(place) or 0 for key, place in places.items()}
    cells = [(job, kind) for job in JOBS for kind in KINDS]
    top = {cell: max(ends[*cell, setting] for setting in candidates()) for cell in cells}
    found = [
        {
            "setting": dict(setting),
            "accuracy": {job: {k: ends[job, k, setting] for k in KINDS} for job in JOBS},
            "worst_loss": round(max(top[cell] - ends[*cell, setting] for cell in cells), 6),
        }
        for setting in candidates()
    ]
    return sorted(found, key=lambda entry: entry["worst_loss"])


def as_it_comes(make: Runs, known: Mapping[str, float | None]) -> dict[str, float | None]:
    """The default with its constant rate, on all jobs: what `fafed.FAFED()` gives."""
    default, every = jobs.default("fafed"), (*JOBS, *ELSEWHERE)
    wanted = {
        (job,): jobs.run(job, "fafed", default, "constant", ONE_SEED)
        for job in every
        if job not in known
    }
    ends = {job: accuracy(place) for (job,), place in make("FAFED as it comes", wanted).items()}
    found = {**known, **ends}
    return {job: found[job] for job in every if job in found}


def as_called(make: Runs, known: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the rounds, steps and batches of a first call of `fafed.train`, beside FedAvg,
    which falls and whose eta is chosen for each job at that length."""
    every, grid = (*JOBS, *ELSEWHERE), jobs.grid(JOBS[0], "fedavg")
    left = [job for job in every if job not in known]
    trials = make(
        "choosing, as called",
        {(job, s): called(job, "fedavg", s, "linear", TUNING_SEED) for job in left for s in grid},
    )
    left = [job for job in left if all((job, s) in trials for s in grid)]
    best = {job: _highest(grid, [held_out(trials[job, s]) for s in grid]) for job in left}
    ends = make(
        "measuring, as called",
        {(job, "fedavg"): called(job, "fedavg", best[job], "linear", ONE_SEED) for job in left}
        | {
            (job, "fafed"): called(job, "fafed", jobs.default("fafed"), "constant", ONE_SEED)
            for job in left
        },
    )
    found = {
        job: {
            "setting": dict(best[job]),
            **{name: accuracy(ends[job, name]) for name in ("fedavg", "fafed")},
        }
        for job in left
        if all((job, name) in ends for name in ("fedavg", "fafed"))
    }
    found = {**known, **found}
    return {job: found[job] for job in every if job in found}


def _highest(settings: list[Setting], accuracies: list[float | None]) -> Setting:
    return settings[max(range(len(settings)), key=lambda i: accuracies[i] or 0)]


def called(job: str, name: str, setting: Setting, kind: str, seed: int) -> Experiment:
    found = jobs.run(job, name, setting, kind, seed)
    return found.changed(**CALLED, checkpoint_every=CALLED["rounds"])
