"""Tensors inside torch.func.vmap, where clients are computed together."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from fafed.core import tree

T = TypeVar("T")


def wrapped(state: object) -> bool:
    """Whether a tensor of the state is inside vmap or grad of torch.func."""
    return any(functorch.is_functorch_wrapped_tensor(leaf) for leaf in tree.leaves(state))


def clients_first(leaf: Tensor) -> Tensor:
    """The tensor of all clients of the innermost vmap. Its first dimension runs over them."""
    clients = functorch.maybe_get_bdim(leaf)
    bare = functorch.get_unwrapped(leaf)
    return bare if clients == 0 else bare.movedim(clients, 0)


def unbatched(state: T) -> T:
    """The same state, where tensors that are equal for all clients of a vmap are taken out of it.

    What is computed from them is then computed once, not once for each client. Outside vmap, and
    for tensors that differ, nothing changes.
    """
    return tree.map(_unbatched, state)


def _unbatched(leaf: Tensor) -> Tensor:
    if functorch.maybe_get_level(leaf) < 0:
        return leaf
    rows = clients_first(leaf)
    if wrapped(rows):  # an outer transform has it, too
        return leaf
    alike = rows.stride(0) == 0 or torch.equal(rows, rows[:1].expand_as(rows))
    return rows[0] if alike else leaf
