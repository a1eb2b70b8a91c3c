"""The small job of the pages "Coming from ...": four clients whose classes differ, and an MLP."""

import torch
from torch import nn

CLIENTS, ROUNDS, EPOCHS, BATCH, ETA = 4, 10, 1, 20, 0.1


def draw(classes, examples, seed):
    r = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor(classes)[torch.randint(len(classes), (examples,), generator=r)]
    return centres[targets] + 2 * torch.randn(examples, 10, generator=r), targets


def client(i):
    """(inputs, targets) of client i. It has two of the four classes."""
    return draw((i, (i + 1) % 4), 200, seed=1 + i)


def test_set():
    return draw((0, 1, 2, 3), 1000, seed=100)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))


def accuracy(net):
    inputs, targets = test_set()
    with torch.no_grad():
        return (net(inputs).argmax(1) == targets).float().mean().item()
