"""Seconds of a round of FedKron beside one of FedAvg, on two jobs of studies.performance.

Rounds of both take turns, so a busy machine slows both alike. Evaluation is not part of a round.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fafed.algorithms import FedAvg, FedKron
from fafed.core.algorithm import AnyAlgorithm
from fafed.data.sources.examples import Examples
from fafed.kernels.malloc import keep_freed_memory
from fafed.objectives.module import Model
from fafed.training.build import build
from fafed.training.loop import Run
from studies.performance import machine
from studies.performance.jobs import JOBS, Job, build_model, load

RESULTS = Path(__file__).parent / "speed.json"
ASKED = ("J1", "J4")
ROUNDS = 9  # of each method, after one that is not counted


def start(job: Job, algorithm: AnyAlgorithm) -> Run:
    pool, _ = load(job.dataset)
    parts = np.array_split(np.arange(len(pool[0])), job.clients)
    source = Examples(pool, list(parts), batch_size=job.batch)
    goal = Model(build_model(job), F.cross_entropy)
    return build(algorithm, goal, source, rounds=ROUNDS + 1, local_steps=job.steps, workers=1)


def lap(run: Run) -> float:
    began = time.perf_counter()
    run.round()
    return time.perf_counter() - began


def compare(job: Job) -> dict[str, Any]:
    runs = {"fedavg": start(job, FedAvg(job.eta)), "fedkron": start(job, FedKron())}
    for run in runs.values():
        lap(run)  # the opening is part of the first round
    laps = [{name: lap(run) for name, run in runs.items()} for _ in range(ROUNDS)]
    found = {name: statistics.median(both[name] for both in laps) for name in runs}
    ratio = statistics.median(both["fedkron"] / both["fedavg"] for both in laps)
    return {
        "title": job.title,
        "clients": job.clients,
        "b": job.batch,
        "q": job.steps,
        **{name: float(f"{seconds:.3g}") for name, seconds in found.items()},
        "ratio": float(f"{ratio:.3g}"),
    }


def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    keep_freed_memory()
    about = machine.describe(machine.pin(1))
    return {"machine": about, "jobs": {name: compare(JOBS[name]) for name in ASKED}}


def main() -> None:
    RESULTS.write_text(json.dumps(measure(), indent=1) + "\n", "utf-8")
