"""What runs inside FLARE's processes: the server's loop and a client's part of a round.

FLARE ships the whole package of this module to its sites, so they import it as it is here.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.collab import collab

from studies.performance.runners import harness
from studies.performance.runners import plain_models as models

TASK, ANSWER, BEGAN = "BENCHMARK_TASK", "BENCHMARK_ANSWER", "BENCHMARK_BEGAN"
CORES = 2


@lru_cache(maxsize=1)
def prepared() -> tuple[harness.Task, torch.nn.Module]:
    torch.set_num_threads(1)
    task = harness.read(Path(os.environ[TASK]))
    return task, models.build(task.model, task.options, task.x0)


@collab.publish
def train(round: int, x: Any) -> Any:
    task, model = prepared()
    models.load(model, torch.from_numpy(np.array(x)))
    models.begin(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.eta)
    client = int(collab.site_name.removeprefix("site-")) - 1
    for inputs, targets in task.batches(round, client):
        optimizer.zero_grad()
        models.loss(model, inputs, targets).backward()
        optimizer.step()
    return models.vector(model).numpy()


@collab.main
def fedavg() -> None:
    task, _ = prepared()
    clock = harness.Clock(float(os.environ[BEGAN]))
    x = task.x0.numpy()
    for round in range(task.rounds + 1):
        total = np.zeros_like(x)
        # no more calls at once than cores, or the sites fight for them
        replies = collab.clients(timeout=3600.0, parallel=CORES).train(round, x)
        if len(replies) != task.clients:
            raise RuntimeError(f"round {round}: {len(replies)} of {task.clients} sites answered")
        for _, reply in replies:
            total += reply
        x = total / task.clients
        clock.lap()
    clock.answer(Path(os.environ[ANSWER]), x)
