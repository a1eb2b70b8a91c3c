"""Your own algorithm: FedAvg with momentum on the server (https://arxiv.org/abs/1909.06335)."""

from collections import namedtuple
from dataclasses import dataclass

import torch

import fafed
from fafed.core.hyper import above, between, hyper

Shared = namedtuple("Shared", "x m")  # what the server keeps: the model and its momentum
Message = namedtuple("Message", "delta")  # what a client answers; the server sees the mean


@dataclass(frozen=True)
class FedAvgM(fafed.Algorithm):
    eta: float = hyper(0.05, above(0), "the local step size")
    beta: float = hyper(0.5, between(0, 1), "the memory of the momentum")

    def init(self, x):
        return Shared(x, torch.zeros_like(x))

    def local(self, grad, down, local, batches):
        y = down.x
        for batch in batches:
            y = y - self.eta * grad(y, batch)
        return local, Message(y - down.x)

    def server(self, shared, mean, info):
        m = self.beta * shared.m + mean.delta
        return Shared(shared.x + m, m)


if __name__ == "__main__":
    torch.manual_seed(0)
    clients = [(torch.randn(60, 5) + i, torch.randint(i, i + 2, (60,))) for i in range(3)]
    model = torch.nn.Linear(5, 4)
    for engine in ("loop", "vmap"):
        print(engine, fafed.train(model, clients, FedAvgM(), rounds=20, engine=engine).history[-1])
