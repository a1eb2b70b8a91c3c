"""Operations on all clients of a vmap at once."""

from __future__ import annotations

import torch
from torch import Tensor

from fafed.kernels.vmap_bridge import for_all_clients


def products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 2, 3), (n, 3) -> (n, 2), (n,)"""
    assert a.ndim == 3
    assert b.ndim == 2
    return torch.bmm(a, b[:, :, None])[:, :, 0], b.sum(1)


def test_one_client():
    a, b = torch.randn(2, 3), torch.randn(3)
    found = for_all_clients(products, a, b)
    torch.testing.assert_close(found, (a @ b, b.sum()))


def test_many_clients_with_any_dimension_or_none_of_their_own():
    a, b = torch.randn(5, 2, 3), torch.randn(5, 3)

    def one(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return for_all_clients(products, a, 2 * b)

    want = (a @ (2 * b)[:, :, None])[:, :, 0], 2 * b.sum(1)
    torch.testing.assert_close(torch.func.vmap(one)(a, b), want)
    turned = torch.func.vmap(one, in_dims=(2, 1))(a.movedim(0, 2), b.T)
    torch.testing.assert_close(turned, want)
    shared = torch.func.vmap(one, in_dims=(None, 0))(a[0], b)
    torch.testing.assert_close(shared, ((a[0] @ (2 * b).T).T, 2 * b.sum(1)))


def test_vmaps_in_each_other():
    a, b = torch.randn(4, 5, 2, 3), torch.randn(4, 5, 3)

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return for_all_clients(lambda a, b: ((a * b[:, None]).sum(2),), a, b)[0]

    found = torch.func.vmap(torch.func.vmap(inner))(a, b)
    torch.testing.assert_close(found, (a * b[:, :, None]).sum(3))
