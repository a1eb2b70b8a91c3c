"""What a client looks at in one exchange: samples, and the key of every random draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor


class Batch(NamedTuple):
    """All of xi: a sample, and the key of every other random draw that is made with it."""

    data: Any  # a tuple of tensors, (inputs, targets)
    key: Tensor  # int64 scalar: dropout masks and whatever else the model draws
    fresh: Tensor  # bool scalar: a recurrent model starts from its initial state
    step: bool = True  # False for an anchor or a full pass, which leave no recurrent state behind
    moves_buffers: bool = True  # False for those too, unless a step is made with them

    def for_step(self) -> Batch:
        """An anchor or a full pass with whose gradient a step is made: buffers such as BatchNorm's
        statistics move with it, as they do with a step's own batch."""
        return self._replace(moves_buffers=True)

    def redrawn(self) -> Batch:
        """The same sample with other dropout masks: what the same-sample rule forbids."""
        return self._replace(key=self.key ^ 0x5DEECE66D)


class Batches(Protocol):
    """What one exchange may look at on one client, as far as its `draw` names it."""

    def __iter__(self) -> Iterator[Batch]: ...  # "round": one batch of b per local step
    def __len__(self) -> int: ...  # local steps, q
    @property
    def anchor(self) -> Batch: ...  # "anchor": one of B, drawn apart from the steps' batches
    @property
    def full(self) -> Batch: ...  # "full": the whole shard, in order


Draw = Literal["round", "anchor", "full"]


class Picked(NamedTuple):
    """Rows of a pool that are not copied together yet: an engine may read them where they are."""

    rows: Tensor
    pool: Tensor
