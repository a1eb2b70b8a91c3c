"""Your own algorithm: FedAvg with momentum on the server (https://arxiv.org/abs/1909.06335)."""

from collections import namedtuple
from dataclasses import dataclass

import torch

import fafed
from fafed.algorithm import above, between, hyper

Shared = namedtuple("Shared", "x m")  # what the server keeps: the model and its momentum
Down = namedtuple("Down", "x")  # what goes down to a client: it has no use for m
Message = namedtuple("Message", "delta")  # what comes back; the server sees the mean


@dataclass(frozen=True)
class FedAvgM(fafed.Algorithm):
    eta: float = hyper(0.05, above(0), "the local step size")
    beta: float = hyper(0.9, between(0, 1), "the memory of the momentum")

    def init(self, x):
        return Shared(x, torch.zeros_like(x))

    def send(self, shared):
        return Down(shared.x)

    def local(self, grad, down, local, batches):
        y = down.x
        for batch in batches:
            y = y - self.eta * grad(y, batch)
        return local, Message(y - down.x)

    def server(self, shared, mean, trip):
        m = self.beta * shared.m + mean.delta
        return Shared(shared.x + m, m)


if __name__ == "__main__":
    data = [(torch.randn(60, 5) + i, torch.full((60,), i)) for i in range(3)]
    for engine in ("loop", "vmap"):
        result = fafed.train(torch.nn.Linear(5, 3), data, FedAvgM(), rounds=20, engine=engine)
        print(engine, [round(r.train_loss, 4) for r in result.history[::5]])
