"""FAFED's default: the study's rule over more options than the four trials have.

The candidates differ in eta, in the floor rho and in the server's momentum. Each is run on the
three jobs on which defaults are chosen, with a step size that falls and with a constant one. The
rule takes the candidate that loses least to the best one in the worst of these six. The other jobs
are looked at afterwards, once, with the chosen one alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
