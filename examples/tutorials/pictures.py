"""Your own folders of pictures: one folder per client, and in it one folder per class.

    python examples/tutorials/pictures.py

The first call makes small pictures, so that there is something to train on. Then put your own
folders in their place.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import fafed

FOLDER = Path("pictures")


# --8<-- [start:data]
CLASSES = ("circle", "cross", "stripes")


def read(path):
    """One picture as a tensor of 1 x 16 x 16. Change it to what your model takes."""
    return torch.from_numpy(np.asarray(Image.open(path).convert("L"), np.float32) / 255)[None]


def client(folder):
    """The data of one client: all pictures below its folder, each with its class number."""
    pairs = [(path, CLASSES.index(path.parent.name)) for path in sorted(folder.glob("*/*.png"))]
    return fafed.data.Files(pairs, load=read)


# --8<-- [end:data]


def train():
    # --8<-- [start:train]
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 7 * 7, 3)
    )
    folders = sorted(path for path in FOLDER.iterdir() if path.name != "test")
    result = fafed.train(
        model,
        clients=[client(folder) for folder in folders],
        algorithm=fafed.FedAvg(eta=0.1),
        rounds=5,
        local_epochs=1,
        batch_size=10,
        test=client(FOLDER / "test"),
        metrics={"accuracy": fafed.metrics.accuracy},
    )
    print(result)
    torch.save(result.model.state_dict(), "pictures.pt")
    # --8<-- [end:train]
    return result


def draw(kind, r):
    """A grey picture of 16 x 16 with noise."""
    rows, columns = np.mgrid[:16, :16]
    x, y = r.integers(5, 11, 2)
    shape = {
        "circle": (rows - y) ** 2 + (columns - x) ** 2 < 20,
        "cross": (abs(rows - y) < 2) | (abs(columns - x) < 2),
        "stripes": (rows + x) % 4 < 2,
    }[kind]
    return np.clip(200 * shape + r.normal(25, 25, (16, 16)), 0, 255).astype(np.uint8)


def make_pictures(folder):
    """Three clients whose classes differ, and a test set."""
    r = np.random.default_rng(0)
    counts = {"north": (40, 5, 5), "south": (5, 40, 5), "west": (5, 5, 40), "test": (30, 30, 30)}
    for name, of_each in counts.items():
        for kind, count in zip(CLASSES, of_each, strict=True):
            place = folder / name / kind
            place.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(draw(kind, r)).save(place / f"{i}.png")


if __name__ == "__main__":
    if not FOLDER.exists():
        make_pictures(FOLDER)
    train()
