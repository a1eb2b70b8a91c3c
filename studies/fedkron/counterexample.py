"""FedKron on the counterexample of Theorem 1: three clients in one dimension, exact gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fafed.algorithms import FedKron
from fafed.core.algorithm import AnyAlgorithm
from fafed.objectives.function import Function
from fafed.training.build import build
from studies.theory.problems import Counterexample

RESULTS = Path(__file__).parent / "counterexample.json"
ROUNDS = 200
STEPS = (1, 5, 10, 20)
START = 10.0
METHODS = {
    "FedKron": FedKron(),
    "without the bound on gradients": FedKron(kappa=0.0),
    "without the limit on local steps": FedKron(reach=0.0),
}


def path(algorithm: AnyAlgorithm, q: int) -> list[float]:
    """The model after each round. It starts at START; the optimum is 0."""
    problem = Counterexample()
    goal = Function(problem.loss, problem.start(), shapes=[(1,)])
    source = problem.source(0, 1)
    run = build(algorithm, goal, source, rounds=ROUNDS, local_steps=q, engine="loop")
    return [float(run.state.shared.x) for _ in run]


def measure() -> list[dict[str, Any]]:
    found = []
    for label, algorithm in METHODS.items():
        for q in STEPS:
            points = path(algorithm, q)
            found.append(
                {
                    "method": label,
                    "q": q,
                    "farthest": float(f"{max(map(abs, points)):.4g}"),
                    "end": float(f"{points[-1]:.3g}"),
                }
            )
    return found


def main() -> None:
    lines = ",\n ".join(map(json.dumps, measure()))
    RESULTS.write_text(f"[\n {lines}\n]\n", "utf-8")
