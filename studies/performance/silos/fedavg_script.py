"""A FedAvg client as FLARE's own examples write it; overhead.py sends it to sites.

One step of a linear model on one example, and the time at which each global model came.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nvflare.client as flare
import torch
from torch.nn import functional as F


def main() -> None:
    folder, inputs = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    model = torch.nn.Linear(inputs, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    x, y = torch.randn(1, inputs), torch.tensor([1])
    flare.init()
    with (folder / flare.get_site_name()).open("a") as times:
        while flare.is_running():
            received = flare.receive()
            if received is None:
                break
            times.write(f"{time.time()}\n")
            times.flush()
            model.load_state_dict(received.params)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            flare.send(flare.FLModel(params=model.state_dict()))


if __name__ == "__main__":
    main()
