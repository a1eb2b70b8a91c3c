"""Your own folders of CSV files: one folder per client, and in it a table that names the classes.

    python examples/tutorials/recordings.py

The first call makes small recordings, so that there is something to train on. Then put your own
folders in their place.
"""

import csv
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fafed

FOLDER = Path("recordings")


# --8<-- [start:data]
def read(path):
    """The second column of one file as a tensor of 1 x 100. All files must give the same shape."""
    values = np.loadtxt(path, dtype=np.float32, delimiter=",", skiprows=1, usecols=1)
    return torch.from_numpy(values[:100])[None]


def client(folder):
    """The data of one client: the files that its labels.csv names, each with its class number."""
    with (folder / "labels.csv").open() as table:
        pairs = [(folder / row["file"], int(row["label"])) for row in csv.DictReader(table)]
    return fafed.data.in_memory(fafed.data.Files(pairs, load=read))


# --8<-- [end:data]


# --8<-- [start:model]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 9)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(torch.relu(self.conv(x)).mean(2))


# --8<-- [end:model]


def train():
    # --8<-- [start:train]
    torch.manual_seed(0)
    result = fafed.train(
        Net(),
        clients=[client(folder) for folder in sorted(FOLDER.iterdir())],
        algorithm=fafed.FedAvg(eta=0.3),
        rounds=30,
        local_epochs=1,
        batch_size=10,
        client_test=0.2,  # a fifth of each client's files, so no test set is needed
        metrics={"accuracy": fafed.metrics.accuracy},
    )
    print(result)
    torch.save(result.model.state_dict(), "recordings.pt")

    model = Net()
    model.load_state_dict(torch.load("recordings.pt"))
    new = read(FOLDER / "north" / "0.csv")
    print("class of a recording:", int(model(new[None]).argmax()))
    # --8<-- [end:train]
    return result


def make_recordings(folder):
    """Three clients whose classes differ. The classes are slow, middle and fast."""
    r = np.random.default_rng(0)
    counts = {"north": (40, 5, 5), "south": (5, 40, 5), "west": (5, 5, 40)}
    time = np.arange(100) / 100
    for name, of_each in counts.items():
        place = folder / name
        place.mkdir(parents=True)
        labels = np.repeat(range(3), of_each)
        for i, label in enumerate(labels):
            phase, speed = r.uniform(0, 6), (3, 8, 15)[label]
            signal = np.sin(6.28 * speed * time + phase) + r.normal(0, 0.3, 100)
            rows = [f"{t:.2f},{value:.3f}" for t, value in zip(time, signal, strict=True)]
            (place / f"{i}.csv").write_text("\n".join(["seconds,level", *rows, ""]), "utf-8")
        rows = [f"{i}.csv,{label}" for i, label in enumerate(labels)]
        (place / "labels.csv").write_text("\n".join(["file,label", *rows, ""]), "utf-8")


if __name__ == "__main__":
    if not FOLDER.exists():
        make_recordings(FOLDER)
    train()
