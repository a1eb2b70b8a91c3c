"""Tensors inside vmap: which are, and what is equal for all clients."""

from __future__ import annotations

import pytest
import torch

from fafed.core.vmap import clients_first, unbatched, wrapped


def test_a_tensor_is_wrapped_inside_vmap_and_grad_alone():
    seen = []

    def look(x):
        seen.append(wrapped({"a": (torch.zeros(2), x)}))
        return x.sum()

    look(torch.ones(3))
    torch.func.vmap(look)(torch.ones(2, 3))
    torch.func.grad(look)(torch.ones(3))
    assert seen == [False, True, True]


@pytest.mark.parametrize("dim", [0, 1])
def test_clients_come_first(dim):
    x, seen = torch.arange(6.0).reshape(2, 3), []

    def look(row):
        seen.append(clients_first(row).clone())
        return row.sum()

    torch.func.vmap(look, in_dims=dim)(x)
    assert torch.equal(seen[0], x.movedim(dim, 0))


def test_what_is_equal_for_all_clients_leaves_vmap():
    same, other, seen = torch.ones(1, 3).expand(4, 3), torch.arange(12.0).reshape(4, 3), []

    def look(a, b, c):
        found = unbatched((a, b, c))
        seen.append([wrapped(leaf) for leaf in found])
        return sum(found)

    summed = torch.func.vmap(look)(same, same.clone(), other)
    assert seen == [[False, False, True]]
    assert torch.equal(summed, 2 * same + other)
    assert torch.equal(unbatched(other), other)


def test_an_outer_transform_keeps_its_tensors():
    def loss(x):
        return torch.func.vmap(lambda row: unbatched(row).square().sum())(x.expand(3, 2)).sum()

    assert torch.equal(torch.func.grad(loss)(torch.ones(2)), torch.full((2,), 6.0))
