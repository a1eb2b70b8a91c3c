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
    trained = models.trained(model)  # a frozen base stays as it is
    for round in range(task.rounds + 1):
        start = {name: value.detach().clone() for name, value in trained.items()}
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in range(task.clients):
            model.load_state_dict(start, strict=False)
            models.begin(model)
            optimizer = torch.optim.SGD(trained.values(), lr=task.eta)
            for inputs, targets in task.batches(round, client):
                optimizer.zero_grad()
                models.loss(model, inputs, targets).backward()
                optimizer.step()
            for name, value in trained.items():
                mean[name] += value.detach() / task.clients
        model.load_state_dict(mean, strict=False)
        clock.lap()
    clock.answer(answer, models.vector(model))


if __name__ == "__main__":
    found = harness.arguments()
    run(found.task, found.answer, found.began)
