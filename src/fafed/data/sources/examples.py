"""Seeded draws: which examples a client sees at which step.

A draw is a function of (seed, client, step) alone, so every algorithm and every engine sees the
same data. A client's examples come in a new random order every epoch. Batch t takes the next b of
this endless sequence. So a batch is always full, and a client with fewer than b examples repeats
them within a batch.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fafed.core import randomness, tree
from fafed.core.batch import Batch, Draw, Picked
from fafed.data.sources.collate import collate, not_stackable
from fafed.errors import ConfigError, DataError
from fafed.kernels.vmap_bridge import for_all_clients

BatchSize = int | Literal["full"]
Indices = NDArray[np.int64]
Columns = tuple[Tensor, ...] | dict[str, Tensor]  # one row per example
MOVED_BYTES = 2**30  # a pool up to this size moves to the model's device


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
        self.batch_size = _checked_size("batch_size", batch_size)
        self.anchor_size = _checked_size(
            "opening_batch_size", batch_size if anchor_size is None else anchor_size
        )
        self.seed = seed
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


def _checked_size(name: str, size: object) -> BatchSize:
    if isinstance(size, str) and size == "full":
        return "full"
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    raise ConfigError(f"{name} must be a positive integer or 'full', got {size!r}")


@dataclass(frozen=True)
class Plain:
    """Data that is in memory already: tensors, and the rows of them that count (None: all)."""

    tensors: Columns
    rows: Indices | None = None

    def __len__(self) -> int:
        return len(tree.leaves(self.tensors)[0]) if self.rows is None else len(self.rows)


def plain(data: object, name: str) -> Plain | None:
    """Tuples and mappings of tensors or arrays, a `TensorDataset`, or a `Subset` of these. None for
    other datasets, whose items must be read."""
    if isinstance(data, IterableDataset):
        raise DataError(
            f"{name} is an IterableDataset, which has no length and no order to draw from: "
            "make it a map-style Dataset or a tuple of tensors"
        )
    if isinstance(data, Plain):
        return data
    if isinstance(data, TensorDataset) and _reads_like(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Subset) and _reads_like(data, Subset):
        inner = plain(data.dataset, name)
        if inner is None:
            return None
        rows = np.asarray(data.indices, dtype=np.int64).reshape(-1)
        if len(rows) and not -len(inner) <= rows.min() <= rows.max() < len(inner):
            raise DataError(
                f"{name} is a Subset with the indices {rows.min()} to {rows.max()} of a dataset of "
                f"{len(inner)} examples: they must be below {len(inner)}"
            )
        rows = rows % max(1, len(inner))
        return Plain(inner.tensors, rows if inner.rows is None else inner.rows[rows])
    if isinstance(data, Mapping):
        if not data:
            raise DataError(f"{name} is an empty mapping: give it a tensor for each name")
        tensors: Any = {str(k): _as_tensor(part, f"{name}, {k!r}") for k, part in data.items()}
    elif isinstance(data, tuple | list) and len(data) > 1:
        tensors = tuple(_as_tensor(part, name) for part in data)
    elif map_style(data):
        return None
    else:
        raise DataError(
            f"{name} must be a Dataset or a tuple of tensors (inputs, targets) or a mapping of "
            f"tensors, got {type(data).__name__}"
        )
    lengths = [len(part) if part.ndim else 0 for part in tree.leaves(tensors)]
    if len(set(lengths)) != 1:
        raise DataError(
            f"{name} has tensors of {', '.join(map(str, lengths))} rows: "
            "inputs and targets need one row for each example"
        )
    return Plain(tensors)


def map_style(data: object) -> bool:
    """Whether this is a dataset with a length, whose items are read by their index."""
    other = isinstance(data, Tensor | np.ndarray | tuple | list | str | bytes | Mapping)
    return not other and hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _reads_like(dataset: Any, kind: type[Any]) -> bool:
    """Whether items come as in this class, and are not changed by a subclass."""
    own = type(dataset)
    return own.__getitem__ is kind.__getitem__ and own.__len__ is kind.__len__


def as_tensors(data: object, name: str) -> Columns:
    """A dataset, or a tuple or mapping of tensors or arrays, as tensors with one row per example.
    Every item of a dataset is read once."""
    found = plain(data, name)
    if found is None:
        found = Plain(_all_items(data, name))
    if found.rows is None:
        return found.tensors
    rows = torch.from_numpy(found.rows)
    return tree.map(lambda leaf: leaf[rows], found.tensors)


def _as_tensor(part: object, name: str) -> Tensor:
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise DataError(
            f"{name} holds a {type(part).__name__} that is no tensor: {cause}"
        ) from cause


def _all_items(dataset: Any, name: str) -> Any:
    if len(dataset) == 0:
        raise no_examples(name)
    items = [dataset[i] for i in range(len(dataset))]
    try:
        return collate(items)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise not_stackable(name, cause) from cause


def no_examples(name: str) -> DataError:
    return DataError(f"{name} has no examples: give it some or leave it out of clients")


def check_clients(clients: Sequence[object]) -> None:
    if isinstance(clients, Dataset | Tensor) or not isinstance(clients, Sequence) or not clients:
        raise DataError(
            "clients must be a non-empty list with one Dataset or (inputs, targets) per client, "
            f"got {type(clients).__name__}" + (" of length 0" if clients == [] else "")
        )


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
    kind = _kind(shards[0])
    for i, shard in enumerate(shards):
        if len(shard) == 0:
            raise no_examples(f"client {i}")
        if _kind(shard) != kind:
            raise DataError(
                f"clients disagree: an example of client 0 is {kind}, one of client "
                f"{i} is {_kind(shard)}; all clients need the same shapes and types"
            )
        leaves = tree.leaves(shard.tensors)
        base = tuple(id(leaf) for leaf in leaves)
        if base not in bases:
            bases[base] = end
            pools.append(_in_order(shard.tensors, shards[0].tensors))
            end += len(leaves[0])
        rows = np.arange(len(leaves[0])) if shard.rows is None else shard.rows
        parts.append(bases[base] + rows)
    pool = pools[0] if len(pools) == 1 else tree.map(lambda *all: torch.cat(all), *pools)
    return Examples(pool, parts, **options)


def _in_order(data: Columns, like: Columns) -> Columns:
    """A mapping in the other's order of names."""
    if isinstance(data, dict) and isinstance(like, dict):
        return {name: data[name] for name in like}
    return data


def _kind(shard: Plain) -> str:
    """The shapes and types of an example, in words."""
    if isinstance(shard.tensors, dict):
        named = sorted(shard.tensors.items())
        return " and ".join(f"{name} {_leaf(part)}" for name, part in named)
    return " and ".join(map(_leaf, shard.tensors))


def _leaf(part: Tensor) -> str:
    return f"{tuple(part.shape[1:])} {part.dtype}"
