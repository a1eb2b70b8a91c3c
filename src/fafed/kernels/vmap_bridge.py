"""Operations that do all clients of a vmap at once, past torch's own batching rules.

An autograd.Function with a vmap rule does the same, but its machinery takes as long for each call
as the gradients of a small network.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch._C import _functorch as functorch


def for_all_clients(
    function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """function(*tensors), which takes and gives tensors with the clients as first dimension.

    Under vmap they are the clients of the vmap; outside it there is one. What is the same for all
    of them is repeated without a copy.
    """
    levels = [functorch.maybe_get_level(t) for t in tensors]
    level = max(levels)
    if level < 0:
        return tuple(found[0] for found in function(*(t[None] for t in tensors)))
    batched = [own == level for own in levels]
    bare = [_clients_first(t) if own else t for t, own in zip(tensors, batched, strict=True)]
    n = bare[batched.index(True)].shape[0]
    stacked = [t if own else t.expand(n, *t.shape) for t, own in zip(bare, batched, strict=True)]
    return tuple(functorch._add_batch_dim(found, 0, level) for found in function(*stacked))


def _clients_first(wrapped: Tensor) -> Tensor:
    clients = functorch.maybe_get_bdim(wrapped)
    bare = functorch.get_unwrapped(wrapped)
    return bare if clients == 0 else bare.movedim(clients, 0)


def wrapped(value: Tensor) -> bool:
    """Whether vmap or grad of torch.func is looking on."""
    return bool(functorch.is_functorch_wrapped_tensor(value))


# What C functions are told about the clients' vectors, (clients, d).


def packed(vectors: Tensor) -> Tensor:
    """With each vector in one piece; one vector for all is not copied."""
    return vectors if vectors.stride(1) == 1 else vectors.contiguous()


def addresses(*tensors: Tensor) -> list[int]:
    """0 for an empty one."""
    return [t.data_ptr() if t.numel() else 0 for t in tensors]


def rows_of(*stacked: Tensor) -> list[int]:
    """Where each begins, and how far it is from one client to the next."""
    return [number for t in stacked for number in (*addresses(t), t.stride(0))]
