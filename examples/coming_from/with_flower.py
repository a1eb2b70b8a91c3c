"""The small job in Flower 1.41.0, in simulation: pip install "flwr[simulation]==1.41.0".

python examples/coming_from/with_flower.py
"""

import job
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

# --8<-- [start:job]
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    data = TensorDataset(*job.client(context.node_config["partition-id"]))
    net = job.model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), lr=job.ETA)
    for _ in range(job.EPOCHS):
        for inputs, targets in DataLoader(data, job.BATCH, shuffle=True):
            optimiser.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
            optimiser.step()
    answer = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(data)}),
    }
    return Message(RecordDict(answer), reply_to=message)


def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    net = job.model()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": job.accuracy(net)})


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=job.CLIENTS)
    start = ArrayRecord(job.model().state_dict())
    result = strategy.start(grid, start, num_rounds=job.ROUNDS, evaluate_fn=evaluate)
    net = job.model()
    net.load_state_dict(result.arrays.to_torch_state_dict())
    print(f"accuracy {job.accuracy(net):.3f}")


# --8<-- [end:job]

if __name__ == "__main__":
    run_simulation(server_app, client_app, num_supernodes=job.CLIENTS)
