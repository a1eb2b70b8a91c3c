"""The interface between an engine and the clients' data."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fafed.core import tree
from fafed.core.batch import Batch, Draw

Indices = NDArray[np.int64]


class Drawn(NamedTuple):
    """Draws of one kind for one client. With several clients there is a leading dimension."""

    rows: Tensor  # (steps, b): input of the source's `gather`
    key: Tensor  # (steps,)
    fresh: Tensor  # (steps,) bool


class Draws(NamedTuple):
    """All data that one exchange may use on one client; () for kinds that it does not use."""

    round: Any
    anchor: Any
    full: Any


class Source(ABC):
    """The clients' data, as an engine sees it."""

    examples: tuple[int, ...]  # per client
    loop_only: str | None = None  # why no back end but the loop can use it; None: others may
    seed: int

    @property
    @abstractmethod
    def units(self) -> int | None:
        """Examples in a step's batch, the unit for counting gradients; None: the whole shard."""

    @property
    @abstractmethod
    def epoch_steps(self) -> int:
        """Local steps in one pass over a client's data."""

    @abstractmethod
    def draw(self, kinds: Sequence[Draw], client: int, step: int, steps: int) -> Draws:
        """Local steps `step`+1 .. `step`+`steps` of one client."""

    def draw_stacked(
        self, kinds: Sequence[Draw], clients: Sequence[int], step: int, steps: int
    ) -> Draws:
        """The draws of several clients, if they are stackable. A source may be faster."""
        return tree.stack([self.draw(kinds, c, step, steps) for c in clients])

    @abstractmethod
    def stackable(self, kinds: Sequence[Draw]) -> bool:
        """Whether these draws have the same shape for all clients."""

    @abstractmethod
    def gather(self, drawn: Drawn) -> Any:
        """The data of these draws. Must work under vmap, and with leading dimensions, unless the
        source is for the loop only."""

    def pick(self, drawn: Drawn) -> Any:
        """The same for a back end that gathers the inputs itself, from a `Picked`."""
        return self.gather(drawn)

    def batches(self, draws: Draws) -> ClientBatches:
        """The batches of one client. A source may read ahead."""
        return ClientBatches(self.gather, draws)

    def with_seed(self, seed: int) -> Source:
        """The same data with other draws."""
        other = copy.copy(self)
        other.seed = seed
        return other

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> Source:
        """The same source with batches on this device, and floating-point data in this type."""

    def close(self) -> None:  # noqa: B027
        """End what works for this source, such as processes. It can be used again afterwards."""


class ClientBatches:
    """The batches of one client in one exchange. Each is gathered when it is needed."""

    def __init__(self, gather: Callable[[Drawn], Any], draws: Draws) -> None:
        self.gather = gather
        self.draws = draws

    def __len__(self) -> int:
        return len(self.draws.round.key) if self.draws.round else 0

    def __iter__(self) -> Iterator[Batch]:
        steps = [one(self.draws.round, k) for k in range(len(self))]
        for drawn, data in zip(steps, self._data(steps), strict=True):
            yield self._batch(data, drawn)

    @property
    def round(self) -> Any:
        """The data of all steps at once: (q, b, ...)."""
        return self.gather(self.draws.round)

    @property
    def anchor(self) -> Batch:
        return self._apart(one(self.draws.anchor, 0))

    @property
    def full(self) -> Batch:
        return self._apart(one(self.draws.full, 0))

    def _data(self, steps: Sequence[Drawn]) -> Iterator[Any]:
        return (self.gather(drawn) for drawn in steps)

    def _batch(self, data: Any, drawn: Drawn) -> Batch:
        return Batch(data, drawn.key, drawn.fresh, examples=drawn.rows.shape[0])

    def _apart(self, drawn: Drawn) -> Batch:
        """A batch that is not one of the steps."""
        return self._batch(self.gather(drawn), drawn)._replace(step=False, moves_buffers=False)


def one(drawn: Drawn, k: int) -> Drawn:
    """The draws of one batch."""
    return Drawn(drawn.rows[k], drawn.key[k], drawn.fresh[k])
