"""Updates and sums of whole vectors, each in one pass over the memory.

A model's vector is larger than a cache, so reading and writing it decides the cost of an update. If
torch has no single operation for an update, C code does it where there is a compiler
(kernels/vectors.c).
"""

from __future__ import annotations

import ctypes
import functools
import logging

import torch
from torch import Tensor

from fafed.core.vectors import step
from fafed.kernels import build
from fafed.kernels.vmap_bridge import for_all_clients, packed, rows_of

log = logging.getLogger("fafed")

LARGE = 2**12  # numbers: for shorter vectors the call costs more than it saves


def storm_estimate(g: Tensor, keep: float | Tensor, m: Tensor, old: Tensor) -> Tensor:
    """g + keep * (m - old): the STORM estimate. g is the gradient at the new point, old at the old
    point."""
    library = _library(g)
    if library is None:
        return step(g, -keep, m - old)
    keep = keep.to(g.dtype) if isinstance(keep, Tensor) else torch.tensor(keep, dtype=g.dtype)
    return for_all_clients(functools.partial(_storm_estimate, library), g, keep, m, old)[0]


def ema_of_squares(v: Tensor, beta: float, g: Tensor) -> Tensor:
    """beta * v + (1 - beta) * g^2."""
    library = _library(g)
    if library is None:
        return torch.addcmul(beta * v, g, g, value=1 - beta)
    return for_all_clients(functools.partial(_ema_of_squares, library, beta), v, g)[0]


def add(total: Tensor, weights: Tensor, stacked: Tensor) -> None:
    """total += weights @ stacked, in float64, for the vectors of several clients."""
    library, weights = _library(total, stacked.dtype), weights.to(total)
    if library is None:
        total.add_(weights @ stacked.to(torch.float64))
    else:
        _add(library, total, weights, stacked)


# The same in C, for the vectors of several clients.


def _storm_estimate(
    library: ctypes.CDLL, g: Tensor, keep: Tensor, m: Tensor, old: Tensor
) -> tuple[Tensor]:
    out = torch.empty(g.shape, dtype=g.dtype)
    g, m, old = packed(g), packed(m), packed(old)
    library.storm_estimate(*out.shape, *rows_of(g, keep, m, old), out.data_ptr())
    return (out,)


def _ema_of_squares(library: ctypes.CDLL, beta: float, v: Tensor, g: Tensor) -> tuple[Tensor]:
    out = torch.empty(g.shape, dtype=g.dtype)
    v, g = packed(v), packed(g)
    library.ema_of_squares(*out.shape, beta, *rows_of(v, g), out.data_ptr())
    return (out,)


def _add(library: ctypes.CDLL, total: Tensor, weights: Tensor, stacked: Tensor) -> None:
    stacked = packed(stacked)
    library.added(*stacked.shape, weights.data_ptr(), *rows_of(stacked), total.data_ptr())


def _library(vector: Tensor, dtype: torch.dtype | None = None) -> ctypes.CDLL | None:
    if vector.device.type != "cpu" or vector.dim() != 1 or vector.numel() < LARGE:
        return None
    return _compiled(dtype or vector.dtype)


@functools.cache
def _compiled(dtype: torch.dtype) -> ctypes.CDLL | None:
    if dtype not in build.DOUBLE or not build.available(dtype):
        return None
    library = build.library(dtype)
    if _agrees(library, dtype):
        return library
    log.warning("the updates of vectors in C do not compute what torch does and are not used")
    return None


def _agrees(library: ctypes.CDLL, dtype: torch.dtype) -> bool:
    """Whether the C functions compute the formulas."""
    # not drawn at random: this may run under vmap, which refuses random numbers
    g, m, old, v = torch.arange(4 * 2 * 37, dtype=torch.float64).sin().to(dtype).view(4, 2, 37)
    keep, weights = torch.arange(4, dtype=torch.float64).cos().view(2, 2)
    total = torch.arange(37, dtype=torch.float64).cos()
    want = total + weights @ v.double()
    (moved,) = _storm_estimate(library, g, keep.to(dtype), m, old)
    (squares,) = _ema_of_squares(library, 0.3, v, g)
    _add(library, total, weights, v)
    near = functools.partial(torch.allclose, rtol=1e-5, atol=1e-6)
    return (
        near(moved, g + keep.to(dtype)[:, None] * (m - old))
        and near(squares, 0.3 * v + 0.7 * g**2)
        and near(total, want)
    )
