"""What all clients hold alike, under vmap."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from fafed.core import tree

T = TypeVar("T")


def unbatched(state: T) -> T:
    """The same state, where tensors that are equal for all clients of a vmap are taken out of it.

    What is computed from them is then computed once, not once for each client. Outside vmap, and
    for tensors that differ, nothing changes.
    """
    return tree.map(_unbatched, state)


def _unbatched(leaf: Tensor) -> Tensor:
    if functorch.maybe_get_level(leaf) < 0:
        return leaf
    bare = functorch.get_unwrapped(leaf)
    if functorch.is_functorch_wrapped_tensor(bare):  # of an outer transform
        return leaf
    rows = bare.movedim(functorch.maybe_get_bdim(leaf), 0)
    alike = rows.stride(0) == 0 or torch.equal(rows, rows[:1].expand_as(rows))
    return rows[0] if alike else leaf
