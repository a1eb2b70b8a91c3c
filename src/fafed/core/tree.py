"""Trees: nested tuples of tensors. States, messages and data are trees. Data may be a mapping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

T = TypeVar("T")
Tree: TypeAlias = "Tensor | tuple[Tree, ...]"  # a NamedTuple of tensors is one, too


def leaves(tree: object) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if not isinstance(tree, tuple):  # lists and dicts of a user's own
        return pytree.tree_leaves(tree)
    return [leaf for branch in tree for leaf in leaves(branch)]


def map(function: Callable[..., Tensor | None], tree: T, *others: object) -> T:
    """Apply a function to the leaves of the tree and the same leaves of the `others`."""
    return cast(T, _map(function, tree, *others))


def _map(function: Callable[..., Tensor | None], tree: object, *others: Any) -> object:
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if not isinstance(tree, tuple):  # lists and dicts of a user's own
        return pytree.tree_map(function, tree, *others)
    parts: list[Any] = [_map(function, *branches) for branches in zip(tree, *others, strict=True)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def rebuilt(like: T, leaves: Sequence[Tensor]) -> T:
    """A tree of the shape of `like` with these leaves."""
    return cast(T, pytree.tree_unflatten(leaves, pytree.tree_structure(like)))


def stack(trees: Sequence[T]) -> T:
    """One tree whose leaves have a new first dimension, one entry per tree."""
    return map(lambda *parts: torch.stack(parts), trees[0], *trees[1:])


def take(tree: T, index: int | slice | Tensor) -> T:
    """The entries `index` of each leaf's first dimension."""
    return map(lambda leaf: leaf[index], tree)


def nbytes(tree: object) -> int:
    """The bytes of the tree's vectors. Scalars (step counters) do not count."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree) if leaf.ndim)


def finite(tree: object) -> Tensor:
    """Whether every number in the tree is finite, as a bool scalar."""
    numbers = [leaf for leaf in leaves(tree) if leaf.is_floating_point()]
    if not numbers:
        return torch.tensor(True)
    # read in parts: a sum in float64 makes torch copy the whole tensor as float64
    parts = [part for leaf in numbers for part in torch.split(leaf.reshape(-1), 2**17)]
    if torch.isfinite(torch.stack([part.sum(dtype=torch.float64) for part in parts])).all():
        return torch.tensor(True)  # a sum may overflow, so otherwise look at every number
    return torch.stack([torch.isfinite(leaf).all() for leaf in numbers]).all()


def flatten(tree: object, prefix: str = "") -> dict[str, Tensor]:
    """Dotted name -> tensor, for files and messages."""
    if isinstance(tree, Tensor):
        return {prefix: tree}
    branches = cast(tuple[object, ...], tree)
    names = getattr(tree, "_fields", None) or [str(i) for i in range(len(branches))]
    parts: dict[str, Tensor] = {}
    for name, branch in zip(names, branches, strict=True):
        parts |= flatten(branch, f"{prefix}.{name}" if prefix else name)
    return parts


def unflatten(like: T, parts: dict[str, Tensor], prefix: str = "") -> T:
    """The inverse of `flatten`: a tree of the shape of `like` filled from `parts`."""
    return cast(T, _unflatten(like, parts, prefix))


def _unflatten(like: Any, parts: dict[str, Tensor], prefix: str) -> object:
    if isinstance(like, Tensor):
        return parts[prefix]
    names = getattr(like, "_fields", None) or [str(i) for i in range(len(like))]
    branches = [
        _unflatten(branch, parts, f"{prefix}.{name}" if prefix else name)
        for name, branch in zip(names, like, strict=True)
    ]
    return type(like)(*branches) if hasattr(like, "_fields") else type(like)(branches)
