"""What a user gives for a client, as tensors with one row per example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fafed.core import tree
from fafed.data.sources.base import Indices
from fafed.data.sources.collate import collate, not_stackable
from fafed.errors import DataError

Columns = tuple[Tensor, ...] | dict[str, Tensor]  # one row per example


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
    if isinstance(data, DataLoader):
        raise DataError(f"{name} is a DataLoader: give its .dataset; fafed draws the batches")
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
        one = isinstance(data, tuple | list) and len(data) == 1
        raise DataError(
            f"{name} must be a Dataset or a tuple of tensors (inputs, targets) or a mapping of "
            f"tensors, got {type(data).__name__}"
            + (" of one: add the targets" if one else "")
            + (_FRAME if hasattr(data, "to_numpy") else "")
            + (_PATH if isinstance(data, str | PathLike) else "")
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
    other = other or hasattr(data, "to_numpy")  # a table: its len and [] are about columns
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


_FRAME = ": write (table[inputs].to_numpy(), table[target].to_numpy())"
_PATH = ": read it with fafed.data.from_folder(FOLDER), or fafed.data.Files for each client"
_ITEMS = (
    "; a list of items is no Dataset: give fafed.data.Files(items, load) for (path, label), or the "
    "inputs and the targets of all items as two tensors; for the data of several clients there are "
    "clients= and client_test="
)

_TEXT = "; number the values, such as with numpy.unique(values, return_inverse=True)[1]"


def _as_tensor(part: Any, name: str) -> Tensor:
    """Tensors, arrays, lists of numbers, and columns of a table (pandas, polars)."""
    if hasattr(part, "to_numpy"):
        part = np.require(part.to_numpy(), requirements="W")
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise DataError(
            f"{name} holds a {type(part).__name__} that is no tensor: {cause}"
            + (_ITEMS if isinstance(part, tuple | list | Mapping) else "")
            + (_TEXT if isinstance(part, np.ndarray) and part.dtype.kind in "OSU" else ""),
            fault="arrays",
        ) from cause


def as_dataset(data: Any, name: str) -> Any:
    """Nested tuples and mappings of tensors as a dataset. Anything else stays as it is."""
    if isinstance(data, Mapping) and any(map(_nested, data.values())):
        return Nested(data, name)
    if isinstance(data, tuple | list) and len(set(map(_nested, data))) == 2:  # not a list of items
        return Nested(data, name)
    return data


def _nested(part: object) -> bool:
    """Whether this part of a batch has parts itself."""
    parts = part if isinstance(part, tuple) else ()
    inside = any(isinstance(one, Tensor | np.ndarray | Mapping) for one in parts)
    return isinstance(part, Mapping) or inside


class Nested:
    """Nested tuples and mappings of tensors in memory, with one row per example, as a dataset that
    is read batch by batch."""

    def __init__(self, data: Any, name: str) -> None:
        parts = data if isinstance(data, Mapping) else tuple(data)
        self.data = self._tensors(parts, name)
        lengths = {len(leaf) if leaf.ndim else 0 for leaf in tree.leaves(self.data)}
        if len(lengths) != 1:
            raise DataError(
                f"{name} has tensors of {', '.join(map(str, sorted(lengths)))} rows: each needs "
                "one row for each example"
            )

    def _tensors(self, data: Any, name: str) -> Any:
        if isinstance(data, Mapping):
            return {str(k): self._tensors(part, f"{name}, {k!r}") for k, part in data.items()}
        if _nested(data):
            return tuple(self._tensors(part, name) for part in data)
        return _as_tensor(data, name)

    def __len__(self) -> int:
        return len(tree.leaves(self.data)[0])

    def __getitem__(self, i: int) -> Any:
        return tree.take(self.data, i)


def _all_items(dataset: Any, name: str) -> Any:
    if len(dataset) == 0:
        raise no_examples(name)
    items = [dataset[i] for i in range(len(dataset))]
    try:
        return collate(items)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise not_stackable(name, cause) from cause


def no_examples(name: str) -> DataError:
    return DataError(
        f"{name} has no examples: give it some or leave it out of clients", fault="empty"
    )


def check_clients(clients: Sequence[object]) -> None:
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


def _cure(clients: object) -> str:
    if isinstance(clients, Mapping):
        return ": write list(clients.values())"
    if isinstance(clients, Dataset):
        return ": write [dataset] for one client, or split it"
    return ": write list(clients)" if isinstance(clients, Iterator) else ""


def in_order(data: Columns, like: Columns) -> Columns:
    """A mapping in the other's order of names."""
    if isinstance(data, dict) and isinstance(like, dict):
        return {name: data[name] for name in like}
    return data


def kind_of(shard: Plain) -> str:
    """The shapes and types of an example, in words."""
    if isinstance(shard.tensors, dict):
        named = sorted(shard.tensors.items())
        return " and ".join(f"{name} {_leaf(part)}" for name, part in named)
    return " and ".join(map(_leaf, shard.tensors))


def _leaf(part: Tensor) -> str:
    return f"{tuple(part.shape[1:])} {part.dtype}"
