"""Operations that compute all clients of a vmap in one call, without torch's batching rules.

An autograd.Function with a vmap rule does the same, but one such call takes as long as the
gradients of a small network.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch._C import _functorch as functorch

from fafed.core.vmap import clients_first


def for_all_clients(
    function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """function(*tensors), where the first dimension of all tensors runs over the clients.

    Under vmap these are the clients of the vmap. Outside vmap there is one client. A tensor that is
    the same for all clients is repeated without a copy.
    """
    levels = [functorch.maybe_get_level(t) for t in tensors]
    level = max(levels)
    if level < 0:
        return tuple(found[0] for found in function(*(t[None] for t in tensors)))
    batched = [own == level for own in levels]
    bare = [clients_first(t) if own else t for t, own in zip(tensors, batched, strict=True)]
    n = bare[batched.index(True)].shape[0]
    stacked = [t if own else t.expand(n, *t.shape) for t, own in zip(bare, batched, strict=True)]
    return tuple(functorch._add_batch_dim(found, 0, level) for found in function(*stacked))


# Arguments of the C functions for the clients' vectors, (clients, d).


def packed(vectors: Tensor) -> Tensor:
    """The same vectors, each contiguous. One vector for all clients is not copied."""
    return vectors if vectors.stride(1) == 1 else vectors.contiguous()


def addresses(*tensors: Tensor) -> list[int]:
    """The address of each tensor; 0 for an empty one."""
    return [t.data_ptr() if t.numel() else 0 for t in tensors]


def rows_of(*stacked: Tensor) -> list[int]:
    """The address of each tensor, and its stride from one client to the next."""
    return [number for t in stacked for number in (*addresses(t), t.stride(0))]
