"""From what the user gives for each client to a source of batches, and to data for evaluation.

Tensors stay in memory: tuples and mappings of tensors, a `TensorDataset`, and a `Subset` of these.
The items of every other map-style dataset are read when a batch needs them (`sources/lazy.py`). If
one client has such a dataset, the data of all clients is read this way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset

from fafed.core import tree
from fafed.core.arguments import checked
from fafed.core.plain import plain as plain_number
from fafed.data.client_test import part_name, without_client_test
from fafed.data.sources.examples import BatchSize, Examples, examples_of
from fafed.data.sources.lazy import Lazy, LazyPart, probe
from fafed.data.sources.reader import Loading, Reader
from fafed.data.sources.tensors import (
    Columns,
    Plain,
    as_dataset,
    as_tensors,
    check_clients,
    no_examples,
    plain,
)
from fafed.errors import ConfigError


class Files(Dataset[tuple[Any, Any]]):
    """A list of (path, label), and a function that reads the file of a path. An item is
    (load(path), label)."""

    def __init__(self, files: Sequence[tuple[Any, Any]], load: Callable[[Any], Any]) -> None:
        self.files = list(files)
        self.load = load

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        path, label = self.files[i]
        return self.load(path), label


def in_memory(dataset: object) -> Any:
    """Read every item once, and return them as tensors: (inputs, targets), or a mapping. Training
    is then faster, but random augmentation is frozen."""
    return as_tensors(dataset, "the dataset")


class Loaded(NamedTuple):
    source: Examples | Lazy
    measured: dict[str, Columns | LazyPart]  # "test", "validation"
    client_test: list[Columns | LazyPart]  # of each client


class Rows:
    """The items of tensors as a map-style dataset, for a client among others that are read."""

    def __init__(self, data: Plain) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Any:
        rows = self.data.rows
        return tree.take(self.data.tensors, i if rows is None else int(rows[i]))


def open_data(
    clients: Sequence[object],
    measured: Mapping[str, object] | None = None,
    *,
    client_test: object = None,
    loading: Loading | None = None,
    **options: Any,
) -> Loaded:
    """The source of the clients' batches, and data for evaluation. `client_test`: see
    `client_test.py`. `options` are the sizes of batches and the seed."""
    loading = loading or Loading()
    check_clients(clients)
    clients = [as_dataset(data, f"client {i}") for i, data in enumerate(clients)]
    shards = [plain(data, f"client {i}") for i, data in enumerate(clients)]
    held = {part: data for part, data in (measured or {}).items() if data is not None}
    if isinstance(client_test, Sequence):
        held |= {part_name(i): data for i, data in enumerate(client_test)}
    held = {part: as_dataset(data, part) for part, data in held.items()}
    in_memory = {part: plain(data, part) for part, data in held.items()}
    datasets: list[Any] = []
    names: list[str] = []
    if any(shard is None for shard in shards):
        datasets = [
            data if shard is None else Rows(shard)
            for data, shard in zip(clients, shards, strict=True)
        ]
        names = [f"client {i}" for i in range(len(clients))]
    lazy_parts = [part for part, found in in_memory.items() if found is None]
    reader = Reader(
        [*datasets, *(held[part] for part in lazy_parts)], [*names, *lazy_parts], loading
    )
    for name, dataset in zip(reader.items.names, reader.items.datasets, strict=True):
        if len(dataset) == 0:
            raise no_examples(name)
    found: dict[str, Columns | LazyPart] = {}
    for part, here in in_memory.items():
        if here is None:
            at = len(datasets) + lazy_parts.index(part)
            found[part] = LazyPart(reader, [(at, np.arange(len(reader.items.datasets[at])))])
        else:
            found[part] = as_tensors(here, part)
    source: Examples | Lazy
    if datasets:
        probe(reader, len(clients))
        source = Lazy(reader, [len(d) for d in datasets], **options)
    else:
        source = examples_of(list(shards), data_device=loading.device, **options)
        source.close_readers = reader.close  # those of data for evaluation
    if isinstance(client_test, Sequence):
        client_test = [found.pop(part_name(i)) for i in range(len(client_test))]
    source, tests = without_client_test(source, client_test, source.seed)
    return Loaded(source, found, tests)


def steps_of_round(
    steps: int | None,
    epochs: float | None,
    batch_size: BatchSize,
    examples: Sequence[int],
    default: int = 10,
) -> int:
    """The number of local steps, q. All clients make the same number. From epochs it is
    ceil(epochs * mean number of examples of a client / batch size)."""
    if epochs is None:
        return default if steps is None else checked("local_steps", steps)
    epochs = plain_number(epochs)
    if steps is not None:
        raise ConfigError(
            f"local_steps = {steps!r} and local_epochs = {epochs!r}: give one of them"
        )
    if isinstance(epochs, bool) or not isinstance(epochs, int | float) or not 0 < epochs < math.inf:
        raise ConfigError(f"local_epochs must be a positive number, got {epochs!r}")
    per_epoch = 1.0 if batch_size == "full" else float(np.mean(examples)) / batch_size
    return max(1, math.ceil(epochs * per_epoch - 1e-9))
