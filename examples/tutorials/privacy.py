"""Differential privacy of each example, in simulation, on the tables of tables.py.

python examples/tutorials/privacy.py
"""

import torch
from tables import FOLDER, make_tables
from torch import nn

import fafed


def train():
    # --8<-- [start:train]
    own = fafed.data.from_folder(FOLDER)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    privacy = fafed.Privacy(level="example", noise=1.5, clip=1.0, delta=1e-3, max_epsilon=8.0)
    result = fafed.train(
        model,
        own.clients,
        fafed.FedAvg(eta=0.1),
        rounds=20,
        local_steps=5,
        batch_size=20,
        test=own.test,
        metrics={"accuracy": fafed.metrics.accuracy},
        privacy=privacy,
    )
    for record in result.history[4::5]:
        epsilon, accuracy = record.diagnostics["epsilon"], record.test["accuracy"]
        print(f"round {record.round:2}  epsilon {epsilon:.2f}  accuracy {accuracy:.3f}")
    # --8<-- [end:train]
    return result


if __name__ == "__main__":
    if not FOLDER.exists():
        make_tables(FOLDER)
    train()
