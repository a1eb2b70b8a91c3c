"""Local steps that move each parameter in place give the bits of the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fafed.core.batch import Batch
from fafed.core.gradient import Grad
from fafed.engines.client import Oracle
from fafed.engines.mean import PIECE, Mean
from fafed.objectives.module import Model

STEPS = 3


class Tied(nn.Module):
    """A weight with two names, one that nothing uses, and statistics of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 7), nn.Linear(7, 7)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.norm, self.last = nn.BatchNorm1d(7), nn.Linear(7, 3)

    def forward(self, x):
        return self.last(self.norm(self.second(torch.tanh(self.first(x)))))


class Checkpointed(nn.Module):
    """The gradient of the middle layer comes from a part that is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.last = nn.Linear(7, 7), nn.Linear(7, 3)

    def forward(self, x):
        x = x.clone().requires_grad_()
        return self.last(checkpoint(self.middle, x, use_reentrant=True))


MODELS = {
    "plain": lambda: nn.Sequential(nn.Linear(7, 5), nn.Dropout(0.5), nn.Linear(5, 3)),
    "tied": Tied,
    "checkpointed": Checkpointed,
}


def start(name):
    torch.manual_seed(1)
    return Model(MODELS[name](), F.cross_entropy)


def batches(ignored=()):
    draws = torch.Generator().manual_seed(2)
    found = []
    for k in range(STEPS):
        x = torch.randn(8, 7, generator=draws)
        y = torch.randint(0, 3, (8,), generator=draws)
        y = torch.full_like(y, -100) if k in ignored else y
        found.append(Batch((x, y), torch.tensor(k), torch.tensor(True)))
    return found


RATES = {"numbers": [0.1, 0.05, 0.02], "tensors": [torch.tensor(r) for r in (0.1, 0.05, 0.02)]}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("corrected", [False, True])
def test_steps_in_place_are_the_plain_steps(name, rates, corrected):
    model = start(name)
    data = batches(ignored=(1,))
    model.probe(data[0])
    correction = torch.linspace(-1, 1, model.x0.numel()) if corrected else None
    ends = []
    for steps in (Oracle.sgd_steps, Grad.sgd_steps):
        oracle = Oracle(model, model.start())
        x0 = model.x0.clone()
        x = steps(oracle, x0, RATES[rates], data, correction)
        assert torch.equal(x0, model.x0)
        ends.append((x, *oracle.after.buffers, *oracle.loss(), oracle.evaluations, oracle.samples))
    for ours, plain in zip(*ends, strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(plain))
    assert not torch.equal(ends[0][0], model.x0)


def test_a_part_that_is_computed_again_has_a_gradient():
    """Autograd finds no way from the loss to the middle layer: torch computes it again, apart."""
    model, (batch, *_) = start("checkpointed"), batches()
    model.probe(batch)
    g = model.evaluate(model.x0, batch, model.start()).gradient
    plain = Checkpointed()
    plain.load_state_dict(model.module.state_dict())
    F.cross_entropy(plain(batch.data[0]), batch.data[1]).backward()
    assert torch.equal(g, torch.cat([p.grad.reshape(-1) for p in plain.parameters()]))
    assert g[: 7 * 7].abs().min() > 0


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_large_message_is_added_with_the_same_bits(kind):
    draws = torch.Generator().manual_seed(3)
    one, two = torch.randn(2, 2 * PIECE + 13, generator=draws, dtype=kind)
    mean = Mean()
    mean.add((one,), 0.3)
    mean.add((two,), 0.7)
    total = torch.zeros(one.shape, dtype=torch.float64).add_(one, alpha=0.3).add_(two, alpha=0.7)
    assert torch.equal(mean.total[0], total)
