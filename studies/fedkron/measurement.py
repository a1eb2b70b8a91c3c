"""What studies.which_algorithm does not measure: FedAvg with momentum, and FedKron's default with
three seeds and at equal costs."""

from __future__ import annotations

from typing import Any

from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import JOBS, ONE_SEED, SEEDS, TARGETS, TUNING_SEED, Setting
from studies.which_algorithm.measurement import Runs, accuracy, affordable, held_out, measured

DEFAULT: Setting = (("eta", 0.18),)  # FedKron's only setting here: it is not tuned
MOMENTUM = 0.9
FEDAVGM: list[Setting] = [
    (("eta", eta), ("server_momentum", MOMENTUM)) for eta in (0.003, 0.01, 0.03, 0.1)
]


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
    lengths = {  # FedAvgM's gradients and bytes are FedAvg's
        (job, axis): affordable(ours[job, ONE_SEED], rival[job, ONE_SEED], axis)
        for job in JOBS
        for axis in ("gradients", "bytes")
    }
    equal = make(
        "measuring FedKron's default at equal costs",
        {
            key: jobs.run(key[0], "fedkron", DEFAULT, "linear", ONE_SEED).changed(rounds=rounds)
            for key, rounds in lengths.items()
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
            job: {
                **measured([ours[job, seed] for seed in SEEDS], TARGETS[job]),
                "equal": {
                    axis: {"rounds": lengths[job, axis], "accuracy": accuracy(equal[job, axis])}
                    for axis in ("gradients", "bytes")
                },
            }
            for job in JOBS
        },
    }
