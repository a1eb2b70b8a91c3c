"""What an algorithm is told before the first round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import fafed
from fafed.data.sources.examples import examples_of
from fafed.objectives.function import Function
from fafed.objectives.module import Model
from fafed.training.build import build


@dataclass(frozen=True)
class Curious(fafed.FedAvg):
    shapes: tuple[tuple[int, ...], ...] = ()

    def bind_model(self, shapes):
        return replace(self, shapes=tuple(tuple(shape) for shape in shapes))


def built(algorithm, objective, data):
    source = examples_of([data], batch_size=1, seed=0)
    return build(algorithm, objective, source, rounds=1, local_steps=1).algorithm


def test_an_algorithm_learns_the_shapes_of_the_model():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    objective = Model(module, nn.functional.cross_entropy)
    data = (torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))
    assert built(Curious(), objective, data).shapes == ((2, 1, 3, 3), (2,), (3, 8), (3,))
    assert built(fafed.FAFED(adaptivity="block"), objective, data).blocks == (18, 2, 24, 3)


def test_a_function_is_one_vector_unless_its_shapes_are_given():
    def f(x, data):
        return (x - data[0]).square().mean()

    data = (torch.zeros(2, 6), torch.zeros(2))
    assert built(Curious(), Function(f, torch.zeros(6)), data).shapes == ((6,),)
    objective = Function(f, torch.zeros(6), shapes=[(2, 2), (2,)])
    assert built(Curious(), objective, data).shapes == ((2, 2), (2,))
    with pytest.raises(fafed.ConfigError, match=r"hold 5 numbers, x0 has 6"):
        Function(f, torch.zeros(6), shapes=[(5,)])
