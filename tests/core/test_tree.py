"""Trees of tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fafed.core import tree
from fafed.engines.mean import Mean


class Pair(NamedTuple):
    a: Any
    b: Any


def test_flatten_and_back():
    nested = Pair(torch.arange(3.0), (torch.ones(2), Pair(torch.zeros(()), ())))
    flat = tree.flatten(nested)
    assert set(flat) == {"a", "b.0", "b.1.a"}
    again = tree.unflatten(nested, flat)
    assert isinstance(again.b[1], Pair)
    assert again.b[1].b == ()
    assert torch.equal(again.a, nested.a)


def test_leaves_and_back():
    nested = Pair(torch.arange(3.0), (torch.ones(2), Pair(torch.zeros(()), ())))
    again = tree.rebuilt(nested, [leaf + 1 for leaf in tree.leaves(nested)])
    assert isinstance(again.b[1], Pair)
    assert again.b[1].b == ()
    assert torch.equal(again.a, nested.a + 1)
    assert torch.equal(again.b[1].a, torch.ones(()))


def test_mean_accumulates_in_float64_and_casts_back():
    mean = Mean()
    for value in (1.0, 1e-8, 1e-8):
        mean.add(Pair(torch.tensor([value]), torch.tensor([3])), 1.0)
    found = mean.value()
    assert found.a.dtype == torch.float32
    assert float(found.a) == float(torch.tensor((1.0 + 2e-8) / 3))
    assert found.b.dtype == torch.int64
    assert found.b.tolist() == [3]


def test_stacked_mean_is_the_mean():
    rows = torch.randn(5, 7, dtype=torch.float64)
    weights = torch.rand(5, dtype=torch.float64)
    one, many = Mean(), Mean()
    for row, weight in zip(rows, weights, strict=True):
        one.add((row,), float(weight))
    many.add_stacked((rows[:2],), weights[:2])
    many.add_stacked((rows[2:],), weights[2:])
    torch.testing.assert_close(one.value(), many.value())


def test_bytes_count_vectors_not_counters():
    state = Pair(torch.zeros(4), torch.tensor(7))
    assert tree.nbytes(state) == 16


def test_take_and_stack():
    stacked = tree.stack([Pair(torch.tensor([float(i)]), ()) for i in range(3)])
    assert stacked.a.flatten().tolist() == [0.0, 1.0, 2.0]
    assert tree.take(stacked, 1).a.tolist() == [1.0]
