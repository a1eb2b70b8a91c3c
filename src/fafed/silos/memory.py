"""How a process with a large model saves memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.tree import T
from fafed.engines.mean import Mean
from fafed.kernels.malloc import call
from fafed.objectives.module import Model
from fafed.silos import payload

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)


def return_memory() -> None:
    """Return freed memory to the system. This is the opposite of `malloc.keep_freed_memory`, which
    helps to compute gradients. A server computes none, and waits most of the time."""
    for option, value in (
        (_MMAP_MAX, 65536),
        (_MMAP_THRESHOLD, payload.LARGE),
        (_TRIM_THRESHOLD, 2 * payload.LARGE),
    ):
        call("mallopt", option, value)


def trim() -> None:
    """Return the memory that the pieces of a large message took, before gradients need memory."""
    call("malloc_trim", 0)


def park(goal: Model, folder: Path) -> None:
    """Move the initial parameters of a large model to disk. They are needed only until the first
    message comes."""
    size = goal.x0.numel() * goal.x0.element_size()
    if size <= payload.LARGE or goal.x0.device.type != "cpu" or {*goal.dtypes} != {goal.x0.dtype}:
        return
    goal.x0 = payload.empty(folder, goal.x0).copy_(goal.x0)
    parts = torch.split(goal.x0, list(goal.sizes))
    parameters = dict(goal.module.named_parameters())
    for name, part, shape in zip(goal.names, parts, goal.shapes, strict=True):
        parameters[name].data = part.view(shape)
    payload.release()


def mean(trees: Sequence[T], weights: Sequence[float], folder: Path) -> T:
    """The weighted mean of trees of tensors, with the same numbers as `engines.mean.Mean`. It is
    computed piece by piece, because a whole sum in float64 would take twice the memory of a
    message. Large leaves are on disk."""
    columns = zip(*(tree.leaves(one) for one in trees), strict=True)
    return tree.rebuilt(trees[0], [_mean(leaves, weights, folder) for leaves in columns])


def _mean(leaves: Sequence[Tensor], weights: Sequence[float], folder: Path) -> Tensor:
    result = payload.empty(folder, leaves[0])
    rows = zip(*(payload.stretches(leaf) for leaf in (result, *leaves)), strict=True)
    for target, *sources in rows:
        total = Mean[Tensor]()
        for source, weight in zip(sources, weights, strict=True):
            total.add(source, weight)
        target.copy_(total.value())
    return result
