"""Items of a dataset as one batch.

Tensors, arrays, numbers and lists of numbers are stacked. Tuples and mappings of these, nested as
they may be, become tuples and dictionaries of stacked tensors. Unlike torch's own collate, a list
of numbers is one row, as in the items of Hugging Face's datasets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fafed.errors import DataError


def collate(items: Sequence[Any]) -> Any:
    """One batch. Raises ValueError if the items do not stack."""
    first = items[0]
    if isinstance(first, Mapping):
        names = list(first)
        if any(not isinstance(item, Mapping) or list(item) != names for item in items):
            raise ValueError(f"the items have different names: {names}, and others")
        return {name: _part(name, [item[name] for item in items]) for name in names}
    if isinstance(first, tuple) or (isinstance(first, list) and not _numbers(first)):
        lengths = {len(item) if isinstance(item, tuple | list) else 0 for item in items}
        if len(lengths) != 1:
            raise ValueError(f"the items have different numbers of parts: {sorted(lengths)}")
        columns = zip(*items, strict=True)
        return tuple(_part(str(i), column) for i, column in enumerate(columns))
    return torch.stack([as_tensor(item) for item in items])


def _part(name: str, values: Sequence[Any]) -> Any:
    try:
        return collate(values)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise ValueError(f"part {name!r}: {cause}") from cause


def as_tensor(value: Any) -> Tensor:
    """A tensor, an array, a number or a nested list of numbers as a tensor."""
    if isinstance(value, str | bytes):
        raise ValueError(f"{value[:40]!r} is text: encode it, or leave this column out")
    if isinstance(value, np.ndarray):
        value = np.require(value, value.dtype.newbyteorder("="), "W")
    if not isinstance(value, Tensor | np.ndarray | np.generic | Number | list):
        raise ValueError(f"a {type(value).__name__} is no tensor: make it one in the dataset")
    return torch.as_tensor(value)


def _numbers(value: list[Any]) -> bool:
    """Whether this is a nested list of numbers."""
    return all(isinstance(v, Number) or (isinstance(v, list) and _numbers(v)) for v in value)


def structure(data: Any) -> Any:
    """The names, shapes and types of a batch or an item, to compare and to show."""
    if isinstance(data, Mapping):
        return {name: structure(part) for name, part in data.items()}
    if isinstance(data, tuple) or (isinstance(data, list) and not _numbers(data)):
        return tuple(structure(part) for part in data)
    try:
        tensor = as_tensor(data)
    except (TypeError, ValueError, RuntimeError):
        return type(data).__name__
    return f"{tuple(tensor.shape)} {tensor.dtype}"


def not_stackable(name: str, cause: Exception) -> DataError:
    return DataError(
        f"{name}: its items do not stack into tensors ({cause}); return the same shapes and types "
        "for every example (pictures: resize them), or give a collate_fn that makes a batch of a "
        "list of items"
    )
