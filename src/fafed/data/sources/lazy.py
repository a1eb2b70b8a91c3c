"""Map-style datasets, read batch by batch: nothing is held in memory but the next batches.

Draws are those of `Examples`: the same rows for the same seed, client and step. Random augmentation
is a function of (seed, client, step, index). So every step has new views of its examples, and the
two gradients of a variance-reduced step have the same view. A resumed run has the same views, and
so has every number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.batch import Batch, Draw
from fafed.data.sources.base import ClientBatches, Drawn, Draws, Indices
from fafed.data.sources.collate import structure
from fafed.data.sources.examples import Shuffled
from fafed.data.sources.reader import Reader, Request, request
from fafed.errors import ConfigError, DataError

PROBED = 100  # so many clients show one item each before the first round
CHUNK = 50  # examples in a batch of evaluation


class Lazy(Shuffled):
    """A `Source` that reads the clients' datasets. The rows of all clients are numbered through."""

    loop_only = "the clients' data is a Dataset that is read batch by batch"

    def __init__(
        self,
        reader: Reader,
        lengths: Sequence[int],
        parts: Sequence[Indices] | None = None,
        **options: Any,
    ) -> None:
        """The first datasets of the reader are the clients'. `parts`: the rows that each client
        uses; None: all of its own."""
        self.ends = np.cumsum(lengths)
        super().__init__(
            np.split(np.arange(self.ends[-1]), self.ends[:-1]) if parts is None else parts,
            **options,
        )
        self.reader = reader
        self.close_readers = reader.close
        self.lengths = tuple(lengths)
        self.target: tuple[torch.device, torch.dtype] | None = None  # of the batches

    def with_parts(self, parts: Sequence[Indices], **sizes: Any) -> Self:
        return type(self)(self.reader, self.lengths, parts, **self.sizes | sizes)

    def stackable(self, kinds: Sequence[Draw]) -> bool:
        return False

    def to(self, device: torch.device, dtype: torch.dtype) -> Lazy:
        self.target = device, dtype
        return self

    def gather(self, drawn: Drawn) -> Any:
        return self._here(self.reader.read(self._request(drawn)))

    def batches(self, draws: Draws) -> ClientBatches:
        return _Ahead(self, draws)

    def ahead(self, steps: Sequence[Drawn]) -> Iterator[Any]:
        """The data of several batches, read ahead."""
        return map(self._here, self.reader.ahead([self._request(drawn) for drawn in steps]))

    def part(self, rows: Indices) -> LazyPart:
        """These rows in order, for evaluation."""
        found = []
        for client, last in enumerate(self.ends):
            first = last - self.lengths[client]
            own = rows[(rows >= first) & (rows < last)] - first
            found += [(client, own)] if len(own) else []
        return LazyPart(self.reader, found)

    def _request(self, drawn: Drawn) -> Request:
        rows = drawn.rows.cpu().numpy()
        client = int(np.searchsorted(self.ends, rows[0], side="right"))
        first = self.ends[client] - self.lengths[client]
        return request(client, (rows - first).tolist(), int(drawn.key))

    def _here(self, data: Any) -> Any:
        if self.target is None:
            return data
        device, dtype = self.target

        def moved(leaf: Tensor) -> Tensor:
            return leaf.to(device, dtype if leaf.is_floating_point() else leaf.dtype)

        return tree.map(moved, data)


class _Ahead(ClientBatches):
    """Batches that are read before they are needed."""

    def __init__(self, source: Lazy, draws: Draws) -> None:
        super().__init__(source.gather, draws)
        self.source = source

    def _data(self, steps: Sequence[Drawn]) -> Iterator[Any]:
        return self.source.ahead(steps)

    def _batch(self, data: Any, drawn: Drawn) -> Batch:
        batch = super()._batch(data, drawn)
        if self.source.target is None:
            return batch
        device, _ = self.source.target
        return batch._replace(key=batch.key.to(device), fresh=batch.fresh.to(device))


class LazyPart:
    """A dataset for evaluation, in order. Its views are a function of the index alone."""

    def __init__(
        self, reader: Reader, rows: Sequence[tuple[int, Indices]], size: int = CHUNK
    ) -> None:
        """rows: datasets of the reader, and the items of each. size: examples in a batch."""
        self.reader = reader
        self.rows = rows
        self.size = size

    def __call__(self) -> Iterator[Batch]:
        key = torch.zeros((), dtype=torch.int64)
        fresh = torch.ones((), dtype=torch.bool)
        wanted = [
            request(dataset, items[i : i + self.size].tolist(), 0)
            for dataset, items in self.rows
            for i in range(0, len(items), self.size)
        ]
        for one, data in zip(wanted, self.reader.ahead(wanted), strict=True):
            yield Batch(data, key, fresh, examples=len(one.items))

    def with_size(self, size: int | None) -> LazyPart:
        """The same data in batches of this size."""
        return self if size is None else LazyPart(self.reader, self.rows, size)


def probe(reader: Reader, clients: int) -> None:
    """Read one item of some clients before the first round, and compare them."""
    items, plain = reader.items, reader.loading.collate_fn is None
    like = None
    for client in np.unique(np.linspace(0, clients - 1, min(clients, PROBED)).astype(int)).tolist():
        found = items.item(client, 0)
        own = structure(found)
        like = own if like is None else like
        if plain and own != like:
            raise DataError(
                f"clients disagree: an example of client 0 is {like}, one of client {client} is "
                f"{own}; make them alike where they are read (pictures: resize them), or give a "
                "collate_fn"
            )
        if client == 0 and reader.loading.cache is not None:
            _check_same(found, items.item(client, 0, key=1))


def _check_same(one: Any, other: Any) -> None:
    a, b = tree.leaves(one), tree.leaves(other)
    if any(not _equal(x, y) for x, y in zip(a, b, strict=True)):
        raise ConfigError(
            "cache= is for items that are always the same, but item 0 of client 0 is another one "
            "each time: its random augmentation would be frozen; leave cache out"
        )


def _equal(x: object, y: object) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return torch.equal(x, y)
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.array_equal(x, y)
    same = x == y
    return same if isinstance(same, bool) else True  # an image object: it cannot be compared
