"""FedLab: its serial trainer and synchronous server, one process."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import torch

try:
    import torchvision  # noqa: F401
except Exception:  # a build for another torch: FedLab needs it for datasets not used here
    stub = types.ModuleType("torchvision")
    stub.transforms = stub.datasets = types.ModuleType("nothing")  # type: ignore[attr-defined]
    sys.modules |= {"torchvision": stub, "torchvision.transforms": stub.transforms}

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline

from studies.performance.runners import harness
from studies.performance.runners import plain_models as models
from studies.performance.runners.harness import Batch, Clock, Task


class Flat(torch.nn.Module):
    """FedLab's loss wants one row for each target."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.module(inputs).flatten(0, -2)


class Given:
    """A dataset whose loaders hand out the task's batches."""

    def __init__(self, task: Task, clock: Clock, trainer: SGDSerialClientTrainer) -> None:
        self.task, self.clock, self.trainer = task, clock, trainer

    def get_dataloader(self, client: int, batch_size: int) -> Iterator[Batch]:
        models.begin(self.trainer.model.module)
        for inputs, targets in self.task.batches(len(self.clock.ends), client):
            yield inputs, targets.flatten()


class Timed(StandalonePipeline):
    clock: Clock

    def evaluate(self) -> None:
        self.clock.lap()


def main() -> None:
    found = harness.arguments()
    task, clock = harness.read(found.task), Clock(found.began)
    model = Flat(models.build(task.model, task.options, task.x0))
    trainer = SGDSerialClientTrainer(model, task.clients)
    trainer.setup_dataset(Given(task, clock, trainer))
    trainer.setup_optim(epochs=1, batch_size=task.batch_size, lr=task.eta)
    handler = SyncServerHandler(model, global_round=task.rounds + 1, sample_ratio=1.0)
    pipeline = Timed(handler, trainer)
    pipeline.clock = clock
    pipeline.main()
    clock.answer(found.answer, models.vector(handler.model))


if __name__ == "__main__":
    main()
