"""Compare algorithms on the tables of tables.py, with three seeds each.

python examples/tutorials/compare.py
"""

import torch
from tables import FOLDER, make_tables
from torch import nn

import fafed


def compare():
    # --8<-- [start:compare]
    own = fafed.data.from_folder(FOLDER)

    def model(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    found = fafed.compare(
        model,
        own.clients,
        {
            "FedAvg": fafed.FedAvg(eta=0.1),
            "SCAFFOLD": fafed.SCAFFOLD(eta=0.1),
            "FAFED": fafed.FAFED(eta=0.01),
        },
        rounds=20,
        seeds=(1, 2, 3),
        local_steps=5,
        batch_size=20,
        test=own.test,
        metrics={"accuracy": fafed.metrics.accuracy},
        quiet=True,
    )
    print(found)
    found.report("report", target=0.8)
    # --8<-- [end:compare]
    return found


if __name__ == "__main__":
    if not FOLDER.exists():
        make_tables(FOLDER)
    compare()
