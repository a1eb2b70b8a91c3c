"""Gradient checkpointing: parts that the backward pass computes again see the same parameters and
the same dropout masks."""

from __future__ import annotations

import pytest
import torch
from modules import batch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fafed
from fafed.objectives.module import Model

VARIANTS = pytest.mark.parametrize("reentrant", [False, True])


class Net(nn.Module):
    def __init__(self, reentrant=None, p=0.3, *, noise=0.0, nested=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.last, self.p, self.noise = nn.Linear(6, 3), p, noise
        self.reentrant, self.nested, self.options = reentrant, nested, options

    def again(self, function, *given):
        if self.reentrant is None or not self.training:
            return function(*given)
        return checkpoint(function, *given, use_reentrant=self.reentrant, **self.options)

    def block(self, x, layer):
        x = F.dropout(torch.tanh(layer(x)), self.p, self.training)
        return x + self.noise * torch.rand_like(x) if self.noise else x

    def pair(self, x, one, two):
        inner = self.again if self.nested else lambda function, *given: function(*given)
        return inner(self.block, inner(self.block, x, one), two)

    def forward(self, x):
        a, b, c, d = self.layers
        x = self.again(self.pair, self.block(x, a), b, c)
        return self.last(self.again(self.block, x, d))


CLIENTS = [tuple(batch(12, seed=s).data) for s in range(3)]


def train(net, **options):
    options = {"rounds": 2, "local_steps": 3, "batch_size": 4, "engine": "loop", **options}
    return fafed.train(net.double(), CLIENTS, fafed.FAFED(eta=0.1), **options)


@VARIANTS
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of nested ones
def test_checkpointing_changes_no_number(p, nested, reentrant):
    found = train(Net(reentrant, p, nested=nested), workers=2)
    torch.testing.assert_close(found.x, train(Net(None, p)).x, rtol=1e-12, atol=1e-14)


@VARIANTS
def test_the_gradient_is_that_of_the_point_not_of_the_initial_weights(reentrant):
    example = batch(8)
    goals = [Model(Net(kind, 0.3).double(), F.cross_entropy) for kind in (None, reentrant)]
    for goal in goals:
        goal.probe(example)
    x = goals[0].x0 + 0.5
    plain, found = (goal.evaluate(x, example, goal.start()).gradient for goal in goals)
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-14)


@VARIANTS
def test_other_random_numbers_are_drawn_again_too(reentrant):
    """They are a function of the batch; two runs give the same numbers, with any workers."""
    runs = [train(Net(reentrant, noise=0.5), workers=n) for n in (1, 2)]
    assert torch.equal(runs[0].x, runs[1].x)
    kept = Model(Net(reentrant, p=0.0, noise=0.5).double(), F.cross_entropy)
    plain = Model(Net(None, p=0.0, noise=0.5).double(), F.cross_entropy)
    example = batch(8)
    for goal in (kept, plain):
        goal.probe(example)
    found, wanted = (g.evaluate(g.x0, example, g.start()).gradient for g in (kept, plain))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


@VARIANTS
def test_masks_that_cannot_be_drawn_again_are_refused(reentrant):
    with pytest.raises(fafed.ConfigError, match="preserve_rng_state=True"):
        train(Net(reentrant, preserve_rng_state=False))


@VARIANTS
def test_auto_takes_the_loop(reentrant):
    assert train(Net(reentrant), engine="auto").engine == "loop"


@VARIANTS
def test_buffers_are_updated_once(reentrant):
    class Normed(Net):
        def __init__(self, *given):
            super().__init__(*given)
            self.norm = nn.BatchNorm1d(6)

        def block(self, x, layer):
            return self.norm(super().block(x, layer))

    found, plain = (train(Normed(kind)).model.norm for kind in (reentrant, None))
    torch.testing.assert_close(found.running_mean, plain.running_mean, rtol=1e-12, atol=1e-14)
