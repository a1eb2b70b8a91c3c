"""Seeded draws: which examples a client sees at which step.

A draw is a function of (seed, client, step) alone, so every algorithm and every engine sees the
same data. A client's examples come in a new random order every epoch. Batch t takes the next b of
this endless sequence. So a batch is always full, and a client with fewer than b examples repeats
them within a batch.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fafed.core import randomness, tree
from fafed.core.arguments import checked
from fafed.core.batch import Batch, Draw, Picked
from fafed.errors import DataError
from fafed.kernels.vmap_bridge import for_all_clients

BatchSize = int | Literal["full"]
Indices = NDArray[np.int64]
Columns = tuple[Tensor, ...] | dict[str, Tensor]  # one row per example


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
    def gather(self, rows: Tensor) -> Any:
        """The data of these rows. Must work under vmap."""

    def pick(self, rows: Tensor) -> Any:
        """The same for a back end that gathers the inputs itself, from a `Picked`."""
        return self.gather(rows)

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> Source:
        """The same source on this device, with floating-point data in this type."""


class ClientBatches:
    """The batches of one client in one exchange. Each is gathered when it is needed."""

    def __init__(self, gather: Callable[[Tensor], Any], draws: Draws) -> None:
        self.gather = gather
        self.draws = draws

    def __len__(self) -> int:
        return len(self.draws.round.key) if self.draws.round else 0

    def __iter__(self) -> Iterator[Batch]:
        return (self._batch(self.draws.round, k) for k in range(len(self)))

    @property
    def round(self) -> Any:
        """The data of all steps at once: (q, b, ...)."""
        return self.gather(self.draws.round.rows)

    @property
    def anchor(self) -> Batch:
        return self._batch(self.draws.anchor, 0)._replace(step=False, moves_buffers=False)

    @property
    def full(self) -> Batch:
        return self._batch(self.draws.full, 0)._replace(step=False, moves_buffers=False)

    def _batch(self, drawn: Drawn, k: int) -> Batch:
        return Batch(self.gather(drawn.rows[k]), drawn.key[k], drawn.fresh[k])


class Examples(Source):
    """Independent examples: a pool of tensors, and the rows of the pool that each client has."""

    def __init__(
        self,
        pool: Any,
        parts: Sequence[Indices],
        *,
        batch_size: BatchSize = 50,
        anchor_size: BatchSize | None = None,
        seed: int = 0,
    ) -> None:
        self.pool = pool
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

    @property
    def units(self) -> int | None:
        return None if self.batch_size == "full" else self.batch_size

    @property
    def epoch_steps(self) -> int:
        mean = sum(self.examples) / len(self.examples)
        return 1 if self.batch_size == "full" else max(1, round(mean / self.batch_size))

    def to(self, device: torch.device, dtype: torch.dtype) -> Examples:
        def moved(leaf: Tensor) -> Tensor:
            return leaf.to(device, dtype if leaf.is_floating_point() else leaf.dtype)

        self.pool = tree.map(moved, self.pool)
        return self

    def gather(self, rows: Tensor) -> Any:
        return tree.map(lambda leaf: _rows(leaf, rows), self.pool)

    def pick(self, rows: Tensor) -> Any:
        if isinstance(self.pool, Mapping):
            return self.gather(rows)
        inputs, *rest = self.pool
        return Picked(rows, inputs), *(_rows(leaf, rows) for leaf in rest)

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
        here = tree.leaves(self.pool)[0].device
        drawn = torch.from_numpy(places), randomness.tensor(key), fresh
        return Drawn(*(part.to(here) for part in drawn))

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


def _rows(pool: Tensor, rows: Tensor) -> Tensor:
    """pool[rows]. Copies whole rows, also under vmap, whose own rule copies single numbers."""

    def of_all(rows: Tensor) -> tuple[Tensor]:
        return (pool.index_select(0, rows.reshape(-1)).view(*rows.shape, *pool.shape[1:]),)

    return for_all_clients(of_all, rows)[0]


def as_tensors(data: object, name: str) -> Columns:
    """A dataset, or a tuple or mapping of tensors or arrays, as tensors, one row each."""
    if isinstance(data, IterableDataset):
        raise DataError(
            f"{name} is an IterableDataset, which has no length and no order to draw from: "
            "make it a map-style Dataset or a tuple of tensors"
        )
    if isinstance(data, DataLoader):
        raise DataError(f"{name} is a DataLoader: give its .dataset; fafed draws the batches")
    if isinstance(data, Dataset):
        data = _materialised(data, name)
    if isinstance(data, Mapping):
        if not data:
            raise DataError(f"{name} is an empty mapping: give it a tensor for each name")
        named = {str(key): _as_tensor(part, f"{name}, {key!r}") for key, part in data.items()}
        _check_lengths(list(named.values()), name)
        return named
    if not isinstance(data, tuple | list) or len(data) < 2:
        raise DataError(
            f"{name} must be a Dataset or a tuple of tensors (inputs, targets) or a mapping of "
            f"tensors, got {type(data).__name__}"
        )
    tensors = tuple(_as_tensor(part, name) for part in data)
    _check_lengths(tensors, name)
    return tensors


def _check_lengths(tensors: Sequence[Tensor], name: str) -> None:
    lengths = [len(part) if part.ndim else 0 for part in tensors]
    if len(set(lengths)) != 1:
        raise DataError(
            f"{name} has tensors of {', '.join(map(str, lengths))} rows: "
            "inputs and targets need one row for each example"
        )


def _as_tensor(part: object, name: str) -> Tensor:
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise DataError(
            f"{name} holds a {type(part).__name__} that is no tensor: {cause}"
        ) from cause


def _materialised(dataset: Any, name: str) -> Columns:
    tensors = getattr(dataset, "tensors", None)  # TensorDataset: take them as they are
    if tensors is not None:
        return tuple(tensors)
    if len(dataset) == 0:
        raise DataError(f"{name} has no examples: give it some or leave it out of clients")
    rows = [dataset[i] for i in range(len(dataset))]
    try:
        if isinstance(rows[0], Mapping):
            return {
                key: torch.stack([torch.as_tensor(row[key]) for row in rows]) for key in rows[0]
            }
        return tuple(
            torch.stack([torch.as_tensor(v) for v in col]) for col in zip(*rows, strict=True)
        )
    except (TypeError, ValueError, KeyError, RuntimeError) as cause:
        raise DataError(
            f"{name}: its items do not stack into tensors ({cause}); "
            "return (input, target), or a mapping, of the same shapes and types for every example"
        ) from cause


def examples_of(clients: Sequence[object], **options: Any) -> Examples:
    """An `Examples` source from one dataset or tuple of tensors per client."""
    if isinstance(clients, Dataset | Tensor) or not isinstance(clients, Sequence) or not clients:
        raise DataError(
            "clients must be a non-empty list with one Dataset or (inputs, targets) per client, "
            f"got {type(clients).__name__}"
            + (" of length 0" if clients == [] else "")
            + _cure(clients)
        )
    if len(clients) > 1 and all(isinstance(one, Tensor | np.ndarray) for one in clients):
        raise DataError(
            f"clients has {len(clients)} tensors, which look like the inputs and targets of one "
            "client: write clients=[(inputs, targets)], with one pair per client"
        )
    shards = [as_tensors(data, f"client {i}") for i, data in enumerate(clients)]
    first = shards[0]
    lengths = [len(tree.leaves(shard)[0]) for shard in shards]
    for i, shard in enumerate(shards):
        if lengths[i] == 0:
            raise DataError(f"client {i} has no examples: give it some or leave it out of clients")
        if _kinds(shard) != _kinds(first):
            raise DataError(
                f"clients disagree: an example of client 0 is {_described(first)}, one of client "
                f"{i} is {_described(shard)}; all clients need the same shapes and types"
            )
        if isinstance(shard, dict):  # in one order of names
            shards[i] = {name: shard[name] for name in cast(dict[str, Tensor], first)}
    pool = tree.map(lambda *parts: torch.cat(parts), first, *shards[1:])
    ends = np.cumsum(lengths)
    parts = np.split(np.arange(ends[-1]), ends[:-1])
    return Examples(pool, parts, **options)


def _cure(clients: object) -> str:
    if isinstance(clients, Mapping):
        return ": write list(clients.values())"
    if isinstance(clients, Dataset):
        return ": write [dataset] for one client, or split it"
    return ": write list(clients)" if isinstance(clients, Iterator) else ""


def _kinds(shard: Columns) -> object:
    """The shape and the type of each part of an example."""
    if isinstance(shard, dict):
        return {name: (part.shape[1:], part.dtype) for name, part in shard.items()}
    return [(part.shape[1:], part.dtype) for part in shard]


def _described(shard: Columns) -> str:
    named = shard.items() if isinstance(shard, dict) else (("", part) for part in shard)
    parts = (f"{name} {tuple(part.shape[1:])} {part.dtype}".strip() for name, part in named)
    return " and ".join(parts)
