"""Seconds of a round over real silos on loopback beyond its computation.

    python benchmarks/silos/overhead.py [--silos 3] [--rounds 30] [--parameters 26620]

FedAvg on a linear model of about so many parameters, one step on one example: the computation of
the same rounds in simulation is measured beside it and taken off. Needs fafed[nvflare].
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def examples(silos: int, inputs: int) -> Any:
    """Data for the experiment: two examples for each silo."""
    draw = torch.Generator().manual_seed(0)
    pair = (torch.randn(2, inputs, generator=draw), torch.tensor([0, 1]))
    return [pair] * silos, None


def main() -> None:
    from fafed.engines.nvflare.trial import attempt
    from fafed.experiment import Experiment
    from fafed.rundir import RunDir, execute

    parser = argparse.ArgumentParser()
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--parameters", type=int, default=26_620)
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    sys.path.insert(0, str(HERE))
    inputs = chosen.parameters // 10 - 1
    experiment = Experiment.of(
        {
            "name": "overhead",
            "rounds": chosen.rounds,
            "local_steps": 1,
            "batch_size": 1,
            "engine": "loop",
            "eval_every": 10_000,
            "data": {
                "function": "overhead:examples",
                "options": {"silos": chosen.silos, "inputs": inputs},
                "train_sample": 0,
            },
            "model": {"name": "softmax", "inputs": inputs, "outputs": 10},
            "algorithm": {"name": "fedavg", "eta": 0.001},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        attempt([experiment], chosen.silos, Path(folder) / "silos")
        took = time.perf_counter() - began
        execute(experiment, RunDir(Path(folder) / "simulated"))
        there = rounds(RunDir.of(experiment, Path(folder) / "silos"))
        here = rounds(RunDir(Path(folder) / "simulated"))
    print(f"{10 * (inputs + 1):,} parameters, {chosen.silos} silos, {chosen.rounds} rounds")
    print(f"  over silos    {there:.4f} s a round (median); {took:.0f} s with start and end")
    print(f"  in simulation {here:.4f} s")
    print(f"  overhead      {there - here:.4f} s")


def rounds(place: Any) -> float:
    records = place.records()
    return statistics.median(b.seconds - a.seconds for a, b in itertools.pairwise(records))


if __name__ == "__main__":
    main()
