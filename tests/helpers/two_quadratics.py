"""Two clients with one quadratic each: how far from the optimum an algorithm ends."""

from __future__ import annotations

import numpy as np
import torch

from fafed.data.sources.examples import Examples
from fafed.objectives.function import Function
from fafed.training.build import build

QUADRATIC = {"a": (1.0, 4.0), "b": (0.0, 1.0), "best": 0.8}


def quadratic(x, data):
    a, b = data
    return (a * (x - b) ** 2 / 2).sum()


def limit(algorithm, q, rounds, start=0.3):
    """Where the model ends on two quadratics with exact gradients. A run that has stood still for
    some rounds is at its end."""
    pool = tuple(torch.tensor(QUADRATIC[k], dtype=torch.float64) for k in ("a", "b"))
    source = Examples(pool, [np.array([0]), np.array([1])], batch_size="full")
    objective = Function(quadratic, torch.tensor([start], dtype=torch.float64))
    run = build(algorithm, objective, source, rounds=rounds, local_steps=q, engine="loop")
    still, before = 0, start
    for _ in run:
        x = float(run.state.shared.x)
        still, before = (still + 1 if abs(x - before) < 1e-13 else 0), x
        if still == 5:
            break
    return before - QUADRATIC["best"]
