"""Your own loop: a run is a generator of records, so you decide when to stop."""

import torch
from torch import nn
from torch.nn import functional as F

import fafed
from fafed.data.sources.examples import examples_of
from fafed.training.build import build

torch.manual_seed(0)
clients = [(torch.randn(100, 5) + shift, torch.randint(0, 2, (100,))) for shift in (-1, 0, 1)]

run = build(
    fafed.SCAFFOLD(eta=0.1),
    fafed.Model(nn.Linear(5, 2), F.cross_entropy, clip=1.0),
    examples_of(clients, batch_size=10),
    rounds=1000,
    local_steps=5,
)
previous = float("inf")
for record in run:
    if record.round % 10 == 0:
        print(f"round {record.round}: loss {record.train_loss:.4f}, {record.bytes_up:,} bytes up")
        if previous - record.train_loss < 1e-3:
            break
        previous = record.train_loss
print("the vector:", run.state.shared.x)
