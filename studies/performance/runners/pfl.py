"""pfl-research: its FederatedAveraging on its SimulatedBackend; several processes by torchrun."""

from __future__ import annotations

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import get_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from studies.performance.runners import harness
from studies.performance.runners import plain_models as models
from studies.performance.runners.harness import Clock


class Learner(torch.nn.Module):
    """A model with the two methods that pfl asks for."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return models.loss(self.module, inputs, targets)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        return {"nothing": Weighted(0, 1)}  # asked for in the first round only


class Lap(TrainingProcessCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(self, *args: Any, **kwargs: Any) -> tuple[bool, Metrics]:
        self.clock.lap()
        return False, Metrics()


def main() -> None:
    found = harness.arguments()
    task, clock = harness.read(found.task), Clock(found.began)
    module = models.build(task.model, task.options, task.x0)
    learner = Learner(module)
    model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))

    def dataset(client: int) -> Dataset:
        models.begin(module)
        return Dataset(task.block(len(clock.ends), client), user_id=str(client))

    users = get_user_sampler("minimize_reuse", list(range(task.clients)))
    data = FederatedDataset(dataset, users)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds + 1,
            evaluation_frequency=10**9,
            train_cohort_size=task.clients,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(data, data, postprocessors=[WeightByUser()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=task.eta, local_batch_size=task.batch_size
        ),
        callbacks=[Lap(clock)],
        send_metrics_to_platform=False,
    )
    if get_ops().distributed.global_rank == 0:
        clock.answer(found.answer, models.vector(module))
    if torch.distributed.is_initialized():  # a process that ends before the others may abort them
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
