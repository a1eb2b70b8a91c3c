"""Read the items of map-style datasets, batch by batch, and ahead of time.

Every item is read with the generators of torch (CPU), NumPy (`np.random...`) and Python (`random`)
seeded by a key of its own. So random augmentation is a function of the key, whoever reads the item
and whenever. There is one set of these generators in a process, so threads read one batch at a
time. They read while the model computes. Processes read at the same time, and so do threads if the
user says with `cache` that items never change.
"""

from __future__ import annotations

import multiprocessing
import pickle
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fafed.core import randomness, tree
from fafed.data.sources.collate import collate, not_stackable
from fafed.errors import ConfigError, DataError

Collate = Callable[[list[Any]], Any]
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class Loading:
    """How map-style datasets are read, and where data are held."""

    collate_fn: Collate | None = None  # makes a batch of a list of items; None: stack them
    workers: int = 1  # threads or processes that read ahead; 0: read when a batch is needed
    processes: bool = False  # processes in place of threads
    cache: int | str | None = None  # bytes, as 10**9 or "1GB"; None: items may differ each time
    device: torch.device | str | None = None  # where tensors are held (`Examples`)

    def __post_init__(self) -> None:
        if not isinstance(self.workers, int) or isinstance(self.workers, bool) or self.workers < 0:
            raise ConfigError(f"data_workers must be 0 or a positive number, got {self.workers!r}")
        if self.processes and not self.workers:
            raise ConfigError("data_processes=True needs data_workers of at least 1, got 0")
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise ConfigError(
                f"collate_fn must be a function of a list of items, got {self.collate_fn!r}"
            )
        if not isinstance(self.processes, bool):
            raise ConfigError(f"data_processes must be True or False, got {self.processes!r}")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError) as cause:
            told = str(cause).splitlines()[0]
            raise ConfigError(
                f"data_device {self.device!r} cannot be used: {told}; try 'cpu'"
            ) from cause
        _ = self.cache_bytes

    @property
    def cache_bytes(self) -> int | None:
        """The size of the cache in bytes."""
        size = self.cache
        if isinstance(size, str):
            found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", size.strip().upper())
            if found:
                return int(float(found[1]) * UNITS[found[2] or "B"])
        elif size is None or (type(size) is int and size >= 0):
            return size
        raise ConfigError(f"cache must be a size such as '1GB' or a number of bytes, got {size!r}")


class Request(NamedTuple):
    """The items of one batch."""

    dataset: int
    items: tuple[int, ...]
    keys: tuple[int, ...]  # of the random draws of each item
    key: int  # of those of collate_fn


def request(dataset: int, items: Sequence[int], key: int) -> Request:
    """A batch whose random draws are a function of the key and the item's index."""
    base = np.uint64(key % (1 << 64))
    keys = randomness.keys("view", base, np.asarray(items, dtype=np.int64))
    return Request(
        dataset,
        tuple(int(i) for i in items),
        tuple(int(k) for k in keys),
        int(randomness.keys("collate", base)),
    )


_COUNT = threading.Lock()


class Items:
    """The datasets, and how a batch is made of their items. A worker process has a copy."""

    def __init__(
        self,
        datasets: Sequence[Any],
        names: Sequence[str],
        collate_fn: Collate | None,
        cache: int | None,
    ) -> None:
        self.datasets = datasets
        self.names = names  # for errors
        self.collate_fn = collate_fn
        self.limit = cache  # of the cache, in bytes; None: items may differ each time
        self.cached: dict[tuple[int, int], Any] = {}
        self.bytes = 0

    def batch(self, wanted: Request) -> Any:
        """The collated batch, with tensors as leaves."""
        if self.limit is None:
            with randomness.shared_generators() as seed:
                items = []
                for i, key in zip(wanted.items, wanted.keys, strict=True):
                    seed(key)
                    items.append(self._read(wanted.dataset, i))
                seed(wanted.key)
                data = self._collated(wanted, items)
        else:
            items = [self._same(wanted.dataset, i) for i in wanted.items]
            with randomness.shared_generators() as seed:
                seed(wanted.key)
                data = self._collated(wanted, items)
        self._check(wanted, data)
        return data

    def item(self, dataset: int, i: int, key: int = 0) -> Any:
        """One item, not from the cache."""
        with randomness.shared_generators() as seed:
            seed(key)
            return self._read(dataset, i)

    def _same(self, dataset: int, i: int) -> Any:
        """An item that is always the same."""
        found = self.cached.get((dataset, i))
        if found is None:
            found = self._read(dataset, i)
            with _COUNT:
                size = _nbytes(found)
                if self.bytes + size <= (self.limit or 0) and (dataset, i) not in self.cached:
                    self.bytes += size
                    self.cached[dataset, i] = found
        return found

    def _read(self, dataset: int, i: int) -> Any:
        try:
            return self.datasets[dataset][i]
        except Exception as cause:
            raise DataError(
                f"{self.names[dataset]}: item {i} cannot be read: {type(cause).__name__}: {cause}"
            ) from cause

    def _collated(self, wanted: Request, items: list[Any]) -> Any:
        name = self.names[wanted.dataset]
        if self.collate_fn is None:
            try:
                return collate(items)
            except (TypeError, ValueError, RuntimeError) as cause:
                raise not_stackable(name, cause) from cause
        try:
            return _plain(self.collate_fn(items))
        except Exception as cause:
            raise DataError(
                f"{name}: collate_fn fails on the items {list(wanted.items)[:10]}: "
                f"{type(cause).__name__}: {cause}"
            ) from cause

    def _check(self, wanted: Request, data: Any) -> None:
        name = self.names[wanted.dataset]
        for leaf in tree.leaves(data):
            if not isinstance(leaf, Tensor):
                raise DataError(
                    f"{name}: a batch holds a {type(leaf).__name__}, {leaf!r:.40}; it may hold "
                    "tensors only, in tuples and dictionaries"
                )
            if has_nan(leaf):
                raise DataError(
                    f"{name}: there is a NaN in the items {list(wanted.items)[:10]}: clean them, "
                    "training would only spread it"
                )


def has_nan(leaf: Tensor) -> bool:
    """Whether there is a NaN. Infinity is no NaN: a mask may hold it."""
    if not leaf.is_floating_point() or leaf.device.type == "meta":
        return False
    return bool(torch.isnan(leaf.sum())) and bool(torch.isnan(leaf).any())


def _plain(data: Any) -> Any:
    """The batch of a user's collate_fn with dictionaries and tuples for what is like them, such as
    the batches of Hugging Face's tokenizers, and tensors for arrays."""
    if isinstance(data, Tensor):
        return data
    if isinstance(data, np.ndarray):
        return torch.as_tensor(data)
    if hasattr(data, "keys"):
        return {name: _plain(data[name]) for name in data.keys()}  # noqa: SIM118
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(_plain, data))
    if isinstance(data, tuple | list):
        return tuple(map(_plain, data))
    return data


def _nbytes(item: Any) -> int:
    leaves = pytree.tree_leaves(item)
    return sum(int(getattr(leaf, "nbytes", 32)) for leaf in leaves)


class _Nowhere:
    """A file that forgets what is written."""

    def write(self, data: Any) -> int:
        return len(data)


class Reader:
    """Workers that read batches ahead."""

    def __init__(self, datasets: Sequence[Any], names: Sequence[str], loading: Loading) -> None:
        self.loading = loading
        share = loading.cache_bytes
        if share is not None and loading.processes:
            share //= loading.workers  # each process has its own cache
        self.items = Items(datasets, names, loading.collate_fn, share)
        self._workers: Executor | None = None
        self._starting = threading.Lock()

    def read(self, wanted: Request) -> Any:
        """One batch."""
        (data,) = self.ahead([wanted])
        return data

    def ahead(self, wanted: Iterable[Request]) -> Iterator[Any]:
        """The batches in this order. A few of them are read before they are asked for, so memory
        holds at most that many."""
        if not self.loading.workers:
            yield from map(self.items.batch, wanted)
            return
        waiting: deque[Future[Any]] = deque()
        try:
            for one in wanted:
                waiting.append(self._submit(one))
                if len(waiting) > self.loading.workers:
                    yield self._result(waiting)
            while waiting:
                yield self._result(waiting)
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the workers. They start again when they are needed."""
        with self._starting:
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.shutdown(wait=True, cancel_futures=True)

    def _submit(self, wanted: Request) -> Future[Any]:
        with self._starting:
            if self._workers is None:
                self._workers = self._started()
            if self.loading.processes:
                return self._workers.submit(_in_process, wanted)
            return self._workers.submit(self.items.batch, wanted)

    def _result(self, waiting: deque[Future[Any]]) -> Any:
        try:
            data = waiting.popleft().result()
        except BrokenProcessPool as cause:
            raise DataError(
                "a process that reads data has ended: memory may be short, or the script has no "
                "`if __name__ == '__main__':` around its calls, which processes need; "
                "data_processes=False uses threads"
            ) from cause
        if not self.loading.processes:
            return data
        return pytree.tree_map(lambda part: _tensor(part), data)

    def _started(self) -> Executor:
        if not self.loading.processes:
            return ThreadPoolExecutor(self.loading.workers, "fafed-data")
        try:
            pickle.Pickler(_Nowhere()).dump(self.items)
        except Exception as cause:
            raise ConfigError(
                f"data_processes=True cannot hand the datasets to another process ({cause}): "
                "define their classes and functions at the top of a module, or use threads"
            ) from cause
        # A new interpreter for each: a fork of a process with threads may hang.
        return ProcessPoolExecutor(
            self.loading.workers,
            multiprocessing.get_context("spawn"),
            _start_process,
            (self.items,),
        )


# In a worker process.

_items: Items


def _start_process(items: Items) -> None:
    global _items
    torch.set_num_threads(1)
    _items = items


def _in_process(wanted: Request) -> Any:
    """The batch with arrays for tensors: these travel as plain bytes."""
    return tree.map(lambda leaf: _array(leaf), _items.batch(wanted))


def _array(leaf: Tensor) -> Any:
    return leaf if leaf.dtype == torch.bfloat16 else leaf.detach().numpy()


def _tensor(part: Any) -> Any:
    return torch.from_numpy(part) if isinstance(part, np.ndarray) else part
