"""Your own tables: a folder with one CSV file per client.

    python examples/tutorials/tables.py

The first call makes small tables, so that there is something to train on. Then put your own files
in their place.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

import fafed

FOLDER = Path("tables")


def train():
    # --8<-- [start:train]
    own = fafed.data.from_folder(FOLDER)  # north.csv, south.csv, west.csv, test.csv
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    result = fafed.train(
        model,
        own.clients,
        fafed.FedAvg(eta=0.1),
        rounds=20,
        local_steps=5,
        batch_size=20,
        test=own.test,
        metrics={"accuracy": fafed.metrics.accuracy},
    )
    print(result)
    # --8<-- [end:train]
    return result


def make_tables(folder):
    """Three clients whose classes differ, and a test set. The last column is the class."""
    r = np.random.default_rng(0)
    centres = r.normal(0, 1.5, (3, 4))
    shares = {"north": (8, 1, 1), "south": (1, 8, 1), "west": (1, 1, 8), "test": (1, 1, 1)}
    folder.mkdir()
    for name, share in shares.items():
        kinds = r.choice(3, 300, p=np.array(share) / sum(share))
        rows = centres[kinds] + r.normal(0, 1, (300, 4))
        lines = [
            ",".join(f"{value:.3f}" for value in row) + f",{kind}"
            for row, kind in zip(rows, kinds, strict=True)
        ]
        text = "\n".join(["age,dose,rate,level,target", *lines, ""])
        (folder / f"{name}.csv").write_text(text, "utf-8")


if __name__ == "__main__":
    if not FOLDER.exists():
        make_tables(FOLDER)
    train()
