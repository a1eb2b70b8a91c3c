"""The last result of a computation that server and clients of one process have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from fafed.core import tree
from fafed.core.vmap import wrapped

T = TypeVar("T")


class Last(Generic[T]):
    """The last result, by its inputs. In simulation the server and all clients need the same one:
    one of them computes, the others wait for it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.key: object = None
        self.result: T | None = None

    def get(self, key: object, compute: Callable[[], T]) -> T:
        """compute(), which depends on the tensors of the key only. Inside vmap, where the key may
        differ between clients, and for tensors without numbers nothing is remembered."""
        if wrapped(key) or any(leaf.is_meta for leaf in tree.leaves(key)):
            return compute()
        with self.lock:
            if self.result is None or not _same(self.key, key):
                self.result = compute()
                self.key = key
            return self.result


def _same(a: object, b: object) -> bool:
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return all(x is y or (x.shape == y.shape and torch.equal(x, y)) for x, y in pairs)
