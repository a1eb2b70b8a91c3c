"""What studies.which_algorithm does not measure: FedAvg with momentum, FedKron's default with three
seeds, and FedKron with one part off at a time."""

from __future__ import annotations

from typing import Any

from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import JOBS, ONE_SEED, SEEDS, TARGETS, TUNING_SEED, Setting
from studies.which_algorithm.measurement import Runs, accuracy, held_out, measured

DEFAULT: Setting = (("eta", 0.18),)  # FedKron's only setting here: it is not tuned
MOMENTUM = 0.9
FEDAVGM: list[Setting] = [
    (("eta", eta), ("server_momentum", MOMENTUM)) for eta in (0.003, 0.01, 0.03, 0.1)
]
ABLATION_JOB = JOBS[0]
WITHOUT: dict[str, Setting] = {
    "nothing": DEFAULT,
    "momentum of the server": (*DEFAULT, ("mu", 0.0)),
    "memory of the scale": (*DEFAULT, ("beta", 0.0)),
    "matrices: a scale for each number instead": (*DEFAULT, ("cap", 1)),
    "most of the scale: floor at the largest": (*DEFAULT, ("rho", 1.0)),
    "the bound on local steps": (*DEFAULT, ("kappa", 0.0)),
    "the fall of the step size": (*DEFAULT, ("end", 1.0)),
}


def measure(make: Runs) -> dict[str, Any]:
    trials = make(
        "choosing FedAvgM's step size",
        {
            (job, setting): jobs.run(job, "fedavg", setting, "linear", TUNING_SEED)
            for job in JOBS
            for setting in FEDAVGM
        },
    )
    chosen = {
        job: max(FEDAVGM, key=lambda setting: held_out(trials[job, setting]) or 0) for job in JOBS
    }
    rival = make(
        "measuring FedAvgM",
        {
            (job, seed): jobs.run(job, "fedavg", chosen[job], "linear", seed)
            for job in JOBS
            for seed in SEEDS
        },
    )
    ours = make(
        "measuring FedKron's default",
        {
            (job, seed): jobs.run(job, "fedkron", DEFAULT, "linear", seed)
            for job in JOBS
            for seed in SEEDS
        },
    )
    parts = make(
        "measuring FedKron without its parts",
        {
            (label,): jobs.run(ABLATION_JOB, "fedkron", setting, "linear", ONE_SEED)
            for label, setting in WITHOUT.items()
        },
    )
    return {
        "fedavgm": {
            job: {
                "setting": dict(chosen[job]),
                **measured([rival[job, seed] for seed in SEEDS], TARGETS[job]),
            }
            for job in JOBS
        },
        "default": {
            job: measured([ours[job, seed] for seed in SEEDS], TARGETS[job]) for job in JOBS
        },
        "without": {label: accuracy(place) for (label,), place in parts.items()},
    }
