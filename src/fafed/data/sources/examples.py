"""Seeded draws: which examples a client sees at which step.

A draw is a function of (seed, client, step) alone, so every algorithm and every engine sees the
same data. A client's examples come in a new random order every epoch. Batch t takes the next b of
this endless sequence. So a batch is always full, and a client with fewer than b examples repeats
them within a batch.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from fafed.core import randomness, tree
from fafed.core.arguments import checked
from fafed.core.batch import Draw, Picked
from fafed.data.sources.base import Drawn, Draws, Indices, Source
from fafed.data.sources.tensors import (
    Columns,
    Plain,
    as_tensors,
    check_clients,
    in_order,
    kind_of,
    no_examples,
    plain,
)
from fafed.errors import DataError
from fafed.kernels.vmap_bridge import for_all_clients

BatchSize = int | Literal["full"]
MOVED_BYTES = 2**30  # a pool up to this size moves to the model's device


class Shuffled(Source):
    """Independent examples in a new random order every epoch: the draws, without the data.

    `parts` has the rows of each client.
    """

    device = torch.device("cpu")  # of the batches' keys
    rows_device = torch.device("cpu")  # of the rows: where the data is
    close_readers: Callable[[], None] | None = None  # ends the workers that read datasets

    def __init__(
        self,
        parts: Sequence[Indices],
        *,
        batch_size: BatchSize = 50,
        anchor_size: BatchSize | None = None,
        seed: int = 0,
    ) -> None:
        self.parts: list[Indices] = [np.asarray(part, dtype=np.int64) for part in parts]
        self.examples = tuple(len(part) for part in self.parts)
        self._lengths = np.asarray(self.examples)
        self.batch_size: BatchSize = checked("batch_size", batch_size)
        size: BatchSize | None = checked("opening_batch_size", anchor_size)
        self.anchor_size = self.batch_size if size is None else size
        self.seed = checked("seed", seed)
        self._one_at_a_time = threading.Lock()  # several workers draw at the same time
        self._orders: dict[tuple[int, int], Indices] = {}
        self._stacks: dict[int, tuple[Indices, Indices]] = {}
        for client, n in enumerate(self.examples):
            if n == 0:
                raise DataError(
                    f"client {client} has no examples: give it some or leave it out of clients"
                )

    def close(self) -> None:
        if self.close_readers is not None:
            self.close_readers()

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of batches, and the seed."""
        return {
            "batch_size": self.batch_size,
            "anchor_size": self.anchor_size,
            "seed": self.seed,
        }

    @abstractmethod
    def with_parts(self, parts: Sequence[Indices], **sizes: Any) -> Self:
        """The same data with other rows for each client, and other sizes or another seed."""

    def with_seed(self, seed: int) -> Self:
        return self.with_parts(self.parts, seed=seed)

    @property
    def units(self) -> int | None:
        return None if self.batch_size == "full" else self.batch_size

    @property
    def epoch_steps(self) -> int:
        mean = sum(self.examples) / len(self.examples)
        return 1 if self.batch_size == "full" else max(1, round(mean / self.batch_size))

    def stackable(self, kinds: Sequence[Draw]) -> bool:
        sizes: dict[str, BatchSize] = {
            "round": self.batch_size,
            "anchor": self.anchor_size,
            "full": "full",
        }
        return len(set(self.examples)) == 1 or all(sizes[kind] != "full" for kind in kinds)

    def draw(self, kinds: Sequence[Draw], client: int, step: int, steps: int) -> Draws:
        return tree.take(self.draw_stacked(kinds, [client], step, steps), 0)

    def draw_stacked(
        self, kinds: Sequence[Draw], clients: Sequence[int], step: int, steps: int
    ) -> Draws:
        who = np.asarray(clients)
        sizes: dict[str, BatchSize] = {
            "round": self.batch_size,
            "anchor": self.anchor_size,
            "full": "full",
        }
        count = {"round": steps, "anchor": 1, "full": 1}
        return Draws(
            *(
                self._drawn(kind, who, step, count[kind], sizes[kind]) if kind in kinds else ()
                for kind in ("round", "anchor", "full")
            )
        )

    def _drawn(self, kind: str, who: Indices, step: int, steps: int, size: BatchSize) -> Drawn:
        lengths = self._lengths[who]
        places = np.empty((len(who), steps, lengths[0] if size == "full" else size), np.int64)
        for n in np.unique(lengths):
            here = lengths == n
            places[here] = self._places(kind, who[here], int(n), step, steps, size)
        at = np.arange(step + 1, step + steps + 1)
        key = randomness.keys(f"masks {kind}", self.seed, who[:, None], at)
        fresh = torch.ones(len(who), steps, dtype=torch.bool)
        return Drawn(
            torch.from_numpy(places).to(self.rows_device),
            randomness.tensor(key).to(self.device),
            fresh.to(self.device),
        )

    def _places(
        self, kind: str, who: Indices, n: int, step: int, steps: int, size: BatchSize
    ) -> Indices:
        """Rows of the pool for clients that all have n examples: (clients, steps, size)."""
        own, index = self._shards(n)
        mine = index[who]
        if size == "full":
            return np.broadcast_to(own[mine][:, None], (len(who), steps, n))
        if kind == "anchor":  # its own order, so it never shifts the steps' batches
            key = randomness.keys("anchor", self.seed, who, step)
            order = np.resize(np.arange(n), size)
            rows: Indices = own[mine[:, None], randomness.permutations(key, n)[:, order]]
            return rows[:, None]
        start, count = step * size, steps * size
        epochs = range(start // n, (start + count - 1) // n + 1)
        stream = np.concatenate([self._order(n, epoch)[mine] for epoch in epochs], axis=1)
        first = start - epochs[0] * n
        rows = own[mine[:, None], stream[:, first : first + count]]
        return rows.reshape(len(who), steps, size)

    def _shards(self, n: int) -> tuple[Indices, Indices]:
        """The rows of all clients with n examples, (clients, n), and each client's index there."""
        with self._one_at_a_time:
            if n not in self._stacks:
                members = np.flatnonzero(self._lengths == n)
                index = np.full(len(self.examples), -1)
                index[members] = np.arange(len(members))
                self._stacks[n] = np.stack([self.parts[c] for c in members]), index
            return self._stacks[n]

    def _order(self, n: int, epoch: int) -> Indices:
        """The order of an epoch for all clients with n examples: (clients, n)."""
        with self._one_at_a_time:
            if (n, epoch) not in self._orders:
                for old in [k for k in self._orders if k[0] == n and k[1] < epoch - 1]:
                    del self._orders[old]
                members = np.flatnonzero(self._lengths == n)
                key = randomness.keys("epoch", self.seed, members, epoch)
                self._orders[n, epoch] = randomness.permutations(key, n)
            return self._orders[n, epoch]


class Examples(Shuffled):
    """Examples in memory: a pool of tensors, and the rows of the pool that each client has.

    `data_device` is where the pool is. If it is None, a pool of at most `MOVED_BYTES` moves to the
    model's device. A larger pool stays on the CPU, and its batches travel.
    """

    def __init__(
        self,
        pool: Any,
        parts: Sequence[Indices],
        *,
        data_device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(parts, **options)
        self.pool = pool
        self.data_device = data_device

    def to(self, device: torch.device, dtype: torch.dtype) -> Examples:
        small = tree.nbytes(self.pool) <= MOVED_BYTES
        held = self.data_device or (device if small else "cpu")

        def moved(leaf: Tensor) -> Tensor:
            return leaf.to(held, dtype if leaf.is_floating_point() else leaf.dtype)

        self.pool = tree.map(moved, self.pool)
        self.device, self.rows_device = device, tree.leaves(self.pool)[0].device
        return self

    def gather(self, drawn: Drawn) -> Any:
        return tree.map(lambda leaf: self._rows(leaf, drawn.rows), self.pool)

    def pick(self, drawn: Drawn) -> Any:
        if not isinstance(self.pool, tuple) or self.pool[0].device != self.device:
            return self.gather(drawn)
        inputs, *rest = self.pool
        return Picked(drawn.rows, inputs), *(self._rows(leaf, drawn.rows) for leaf in rest)

    def with_parts(self, parts: Sequence[Indices], **sizes: Any) -> Self:
        options = self.sizes | sizes
        found = type(self)(self.pool, parts, data_device=self.data_device, **options)
        found.close_readers = self.close_readers
        return found

    def part(self, rows: Indices) -> Columns:
        """These rows, for evaluation."""
        return as_tensors(Plain(self.pool, rows), "the clients' data")

    def _rows(self, pool: Tensor, rows: Tensor) -> Tensor:
        return _rows(pool, rows.to(pool.device)).to(self.device)


def _rows(pool: Tensor, rows: Tensor) -> Tensor:
    """pool[rows]. Copies whole rows, also under vmap, whose own rule copies single numbers."""

    def of_all(rows: Tensor) -> tuple[Tensor]:
        return (pool.index_select(0, rows.reshape(-1)).view(*rows.shape, *pool.shape[1:]),)

    return for_all_clients(of_all, rows)[0]


def examples_of(clients: Sequence[object], **options: Any) -> Examples:
    """An `Examples` source from one dataset or tuple of tensors per client. Every item of a dataset
    is read once, and kept. Clients that are subsets of the same tensors share them."""
    check_clients(clients)
    shards = []
    for i, data in enumerate(clients):
        name = f"client {i}"
        shards.append(plain(data, name) or Plain(as_tensors(data, name)))
    bases: dict[tuple[int, ...], int] = {}  # tensors -> their first row in the pool
    pools, parts, end = [], [], 0
    kind = kind_of(shards[0])
    for i, shard in enumerate(shards):
        if len(shard) == 0:
            raise no_examples(f"client {i}")
        if kind_of(shard) != kind:
            raise DataError(
                f"clients disagree: an example of client 0 is {kind}, one of client "
                f"{i} is {kind_of(shard)}; all clients need the same shapes and types"
            )
        leaves = tree.leaves(shard.tensors)
        base = tuple(id(leaf) for leaf in leaves)
        if base not in bases:
            bases[base] = end
            pools.append(in_order(shard.tensors, shards[0].tensors))
            end += len(leaves[0])
        rows = np.arange(len(leaves[0])) if shard.rows is None else shard.rows
        parts.append(bases[base] + rows)
    pool = pools[0] if len(pools) == 1 else tree.map(lambda *all: torch.cat(all), *pools)
    return Examples(pool, parts, **options)
