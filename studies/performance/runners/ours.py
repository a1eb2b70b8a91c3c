"""fafed: the run that `fafed.train` makes, without evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.nn import functional as F

import fafed
from fafed import models
from fafed.core.algorithm import Algorithm
from fafed.data.sources.base import Source
from fafed.kernels.malloc import keep_freed_memory
from fafed.objectives.module import Model
from fafed.training.build import build
from fafed.training.loop import Run
from studies.performance.jobs import source_of
from studies.performance.runners import harness
from studies.performance.runners.harness import Clock


def algorithm_of(name: str, eta: float) -> Algorithm:
    if name == "fafed":  # a smaller step, for stability; it does not change the time
        return fafed.FAFED(eta=0.001, alpha=0.1)
    return fafed.SCAFFOLD(eta=eta) if name == "scaffold" else fafed.FedAvg(eta=eta)


class Ours:
    def __init__(self, folder: Path, algorithm: str, workers: int) -> None:
        self.folder, self.workers = folder, workers
        self.task = harness.read(folder)
        self.sizes = json.loads((folder / "ours.json").read_text())
        self.text = self.task.model == "lstm"
        per_token = self.text or self.task.model.endswith(":gpt2_lora")
        self.loss = models.token_cross_entropy if per_token else F.cross_entropy
        self.algorithm = algorithm_of(algorithm, self.task.eta)
        module = models.build(self.task.model, seed=0, **self.task.options)
        self.objective = Model(module, self.loss)

    def source(self) -> Source:
        return source_of(self.folder, self.text, self.sizes["batch"])

    def start(self, local_steps: int, rounds: int) -> Run:
        return build(
            self.algorithm,
            self.objective,
            self.source(),
            rounds=rounds,
            local_steps=local_steps,
            workers=self.workers,
        )

    def warm_up(self) -> None:
        """Make one step on each client, and continue from the result."""
        run = self.start(local_steps=1, rounds=1)
        run.round()
        moved = self.objective.predict(run.state.shared.x, run.state.buffers)
        self.objective = Model(moved, self.loss)


def run(folder: Path, answer: Path, began: float, algorithm: str, workers: int) -> None:
    ours, clock = Ours(folder, algorithm, workers), Clock(began)
    ours.warm_up()
    opening = bool(ours.algorithm.opening())  # part of the first round, which is not timed then
    training = ours.start(ours.sizes["steps"], ours.task.rounds + opening)
    if opening:
        training.round()
    clock.lap()
    for _ in range(ours.task.rounds):
        training.round()
        clock.lap()
    clock.answer(answer, training.state.shared.x, engine=training.engine.name)


if __name__ == "__main__":
    found = harness.arguments(algorithm="fedavg", workers=2)
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command line does
    run(found.task, found.answer, found.began, found.algorithm, found.workers)
