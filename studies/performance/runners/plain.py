"""A hand-written loop over the clients: what many papers' code looks like."""

from __future__ import annotations

from pathlib import Path

import torch

from studies.performance.runners import harness
from studies.performance.runners import plain_models as models
from studies.performance.runners.harness import Clock


def run(folder: Path, answer: Path, began: float) -> None:
    task = harness.read(folder)
    clock = Clock(began)
    model = models.build(task.model, task.options, task.x0)
    for round in range(task.rounds + 1):
        start = {name: value.clone() for name, value in model.state_dict().items()}
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in range(task.clients):
            model.load_state_dict(start)
            models.begin(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=task.eta)
            for inputs, targets in task.batches(round, client):
                optimizer.zero_grad()
                models.loss(model, inputs, targets).backward()
                optimizer.step()
            for name, value in model.state_dict().items():
                mean[name] += value / task.clients
        model.load_state_dict(mean)
        clock.lap()
    clock.answer(answer, models.vector(model))


if __name__ == "__main__":
    found = harness.arguments()
    run(found.task, found.answer, found.began)
