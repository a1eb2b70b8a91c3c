"""The data of a client in one exchange: samples, and the key of every random draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from fafed.core import tree


class Batch(NamedTuple):
    """The papers' xi: a sample, and the key of all random draws made with it."""

    data: Any  # (inputs..., targets), or a mapping of names to tensors; both may be nested
    key: Tensor  # int64 scalar: decides dropout masks and all other draws of the model
    fresh: Tensor  # bool scalar: a recurrent model starts from its initial state
    step: bool = True  # False for an anchor or a full pass, which keep no recurrent state
    moves_buffers: bool = True  # False for these, too, unless a step uses them
    examples: int | None = None  # how many are in it; None: as many as the first tensor has rows

    @property
    def size(self) -> int:
        """The number of examples."""
        return len(tree.leaves(self.data)[0]) if self.examples is None else self.examples

    def for_step(self) -> Batch:
        """For an anchor or a full pass whose gradient is used for a step. It then updates buffers
        such as BatchNorm's statistics, like a step's own batch."""
        return self._replace(moves_buffers=True)

    def redrawn(self) -> Batch:
        """The same sample with other dropout masks. Variance reduction must not use it: both of its
        gradients need the same masks."""
        return self._replace(key=self.key ^ 0x5DEECE66D)


class Batches(Protocol):
    """The data that one exchange may use on one client: the kinds that its `draw` names."""

    def __iter__(self) -> Iterator[Batch]: ...  # "round": one batch of b per local step
    def __len__(self) -> int: ...  # local steps, q
    @property
    def anchor(self) -> Batch: ...  # "anchor": one batch of B, drawn separately
    @property
    def full(self) -> Batch: ...  # "full": the whole shard, in order


Draw = Literal["round", "anchor", "full"]


class Picked(NamedTuple):
    """Rows of a pool that are not copied yet: a back end may read them directly."""

    rows: Tensor
    pool: Tensor


def labels_of(data: Any) -> Tensor | None:
    """The labels of examples: the last of a tuple, or what a mapping calls "labels"."""
    found = data.get("labels") if isinstance(data, Mapping) else data[-1]
    return found if isinstance(found, Tensor) else None
