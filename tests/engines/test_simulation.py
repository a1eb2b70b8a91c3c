"""How the simulation chooses its way."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fafed import models
from fafed.engines.backends.vmap import Operations


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("cifar-cnn", (4, 3, 32, 32)),
        ("fashion-cnn", (4, 1, 28, 28)),
        ("mlp", (4, 784)),
        ("softmax", (4, 784)),
    ],
)
def test_operations_are_those_that_torch_counts(model, shape):
    def gradient():
        module = models.build(model, seed=0)
        F.cross_entropy(module(inputs), targets).backward()

    inputs, targets = torch.randn(shape), torch.zeros(4, dtype=torch.int64)
    with FlopCounterMode(display=False) as wanted:
        gradient()
    with Operations() as found:
        gradient()
    assert found.count == wanted.get_total_flops() > 0


def test_operations_of_a_recurrent_model():
    module = models.build("lstm", seed=0, vocabulary=50, embedding=8, hidden=8)
    tokens = torch.zeros(3, 5, dtype=torch.int64)
    counts = []
    for mode in (FlopCounterMode(display=False), Operations()):
        with mode:
            outputs, _ = module(tokens, module.initial_state(3))
            outputs.sum().backward()
        counts.append(mode.count if isinstance(mode, Operations) else mode.get_total_flops())
    assert counts[0] == counts[1] > 0
