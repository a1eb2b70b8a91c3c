"""Flower: its FedAvg strategy on its simulation, one Ray actor for each core."""

from __future__ import annotations

import os

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
os.environ.update(OFFLINE)  # before flwr and ray are imported

from flwr.app import ArrayRecord, Context, MetricRecord  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from studies.performance.runners import flower_client, harness  # noqa: E402
from studies.performance.runners import plain_models as models  # noqa: E402
from studies.performance.runners.harness import Clock  # noqa: E402


def main() -> None:
    found = harness.arguments(actors=2)
    os.environ[flower_client.FOLDER] = str(found.task)
    task, clock = harness.read(found.task), Clock(found.began)
    model = models.build(task.model, task.options, task.x0)
    server = ServerApp()

    def after(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round:  # 0: before the first one
            clock.lap()
        return None

    @server.main()
    def start(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=task.clients, min_available_nodes=task.clients
        )
        result = strategy.start(
            grid,
            ArrayRecord(models.state(model)),
            num_rounds=task.rounds + 1,
            evaluate_fn=after,
        )
        model.load_state_dict(result.arrays.to_torch_state_dict(), strict=False)
        clock.answer(found.answer, models.vector(model))

    run_simulation(
        server,
        flower_client.app,
        num_supernodes=task.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": found.actors, "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    main()
