"""The user's own data: from a function, or from a folder with one file per client.

Floats become float32 and integers int64. All clients must have the same shapes and types. The items
of a Dataset stay as they are: they are read when a batch needs them.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fafed.core import plugins
from fafed.core.extras import require
from fafed.data.datasets.cache import reading
from fafed.data.sources.tensors import as_tensors, plain
from fafed.errors import ConfigError, DataError

Pair = tuple[Tensor, Tensor]  # inputs, targets


class Own(NamedTuple):
    clients: tuple[Any, ...]  # for each (inputs, targets), a mapping of tensors, or a Dataset
    test: Any  # one of these, or None


class _Shard(NamedTuple):
    name: str  # for errors
    data: Any  # a Dataset, (inputs, targets), or a mapping of tensors
    columns: tuple[str, ...] = ()  # of a table; their order must be the same, too


def from_function(path: str, **options: Any) -> Own:
    """Call the function "module:function" with the options.

    It returns (clients, test). clients is a list with one (inputs, targets), mapping of tensors or
    map-style Dataset per client. test is one of these, or None.
    """
    function = plugins.find(path, "data function")
    if not callable(function):
        raise ConfigError(f"data function {path!r} is a {type(function).__name__}, not a function")
    plugins.check_options(function, options, f"data function {path!r}")
    result = function(**options)
    if not isinstance(result, tuple | list) or len(result) != 2:
        got = type(result).__name__
        got += f" of length {len(result)}" if isinstance(result, tuple | list) else ""
        raise DataError(f"{path} must return (clients, test), got a {got}")
    clients, test = result
    if not isinstance(clients, Sequence) or len(clients) == 0:
        raise DataError(
            f"the clients that {path} returns must be a list with one (inputs, targets) or Dataset "
            f"for each, got {'an empty' if clients == [] else 'a'} {type(clients).__name__}"
        )
    shards = [_Shard(f"client {i} of {path}", data) for i, data in enumerate(clients)]
    return _own(shards, None if test is None else _Shard(f"the test set of {path}", test))


def from_folder(folder: str | Path) -> Own:
    """One .npz, .safetensors, .parquet or .csv file per client, in the order of their names. A file
    called test.* is the test set.

    Arrays are called inputs and targets, or x and y. In a table the target is the column `target`,
    or else the last one. All other numeric columns are the inputs.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name one that holds a file per client")
    paths = sorted(path for path in folder.iterdir() if path.suffix in _READERS)
    paths = [path for path in paths if not path.name.startswith(".")]
    tests = [path for path in paths if path.stem == "test"]
    clients = [path for path in paths if path.stem != "test"]
    if not clients:
        raise DataError(f"{folder} holds no client: put {', '.join(_READERS)} files there")
    if len(tests) > 1:
        names = " and ".join(path.name for path in tests)
        raise DataError(f"{folder} holds more than one test set, {names}: keep one")
    return _own([_read(path) for path in clients], _read(tests[0]) if tests else None)


def from_file(path: str | Path) -> Pair:
    """The inputs and targets of one .npz, .safetensors, .parquet or .csv file."""
    path = Path(path).expanduser()
    if path.suffix not in _READERS:
        raise DataError(f"{path} is of no kind that can be read: {', '.join(_READERS)}")
    inputs, targets = _settled_data(_read(path))
    return inputs, targets


def _own(clients: Sequence[_Shard], test: _Shard | None) -> Own:
    first, kind = clients[0], ""
    found: list[Any] = []
    for shard in [*clients, *([] if test is None else [test])]:
        data = _settled_data(shard)
        found.append(data)
        if not isinstance(data, tuple | dict):
            continue  # a Dataset
        own_kind = _kind(shard, data)
        first, kind = (first, kind) if kind else (shard, own_kind)
        if own_kind != kind:
            raise DataError(
                f"{first.name} and {shard.name} do not fit together: an example of the first is "
                f"{kind}, of the second {own_kind}; make them alike"
            )
    return Own(tuple(found[: len(clients)]), None if test is None else found[-1])


def _settled_data(shard: _Shard) -> Any:
    """The tensors in float32 and int64, or the Dataset as it is."""
    data, name = shard.data, shard.name
    if isinstance(data, tuple | list):
        data = tuple(_native(part) for part in data)
    elif isinstance(data, Mapping):
        data = {key: _native(part) for key, part in data.items()}
    in_memory = plain(data, name)
    if len(data if in_memory is None else in_memory) == 0:
        raise DataError(f"{name} has no examples: give it some or leave it out")
    if in_memory is None:
        return data
    tensors = as_tensors(in_memory, name)
    if isinstance(tensors, dict):
        return {key: _settled(part, f"{name}: {key}") for key, part in tensors.items()}
    if len(tensors) != 2:
        raise DataError(f"{name} must be (inputs, targets), got {len(tensors)} tensors")
    inputs, targets = tensors
    return _settled(inputs, f"{name}: inputs"), _settled(targets, f"{name}: targets")


def _native(array: Any) -> Any:
    """The array as torch needs it: in this machine's byte order, and writable."""
    if not isinstance(array, np.ndarray):
        return array
    return np.require(array, array.dtype.newbyteorder("="), "W")


def _settled(tensor: Tensor, name: str) -> Tensor:
    if tensor.is_complex():
        raise DataError(f"{name} are complex: give real and imaginary part as two numbers")
    if not tensor.is_floating_point():
        return tensor.detach().to(torch.int64)
    tensor = tensor.detach().to(torch.float32)
    if not tensor.isfinite().all():
        raise DataError(f"{name} hold NaN or infinity: clean them, training would only spread it")
    return tensor


def _kind(shard: _Shard, data: Any) -> str:
    if isinstance(data, dict):
        named = sorted(data.items())
        return ", ".join(f"{k} {tuple(part.shape[1:])} {part.dtype}" for k, part in named)
    inputs, targets = (f"{tuple(part.shape[1:])} {part.dtype}" for part in data)
    columns = f" (columns {', '.join(shard.columns)})" if shard.columns else ""
    return f"{inputs}{columns} -> {targets}"


def _read(path: Path) -> _Shard:
    with reading(path):
        return _READERS[path.suffix](path)


def _read_npz(path: Path) -> _Shard:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            named = {name: arrays[name] for name in arrays.files}
    except ValueError as error:  # objects, which only a pickle could hold
        raise DataError(f"cannot read {path}: {error}; save plain arrays of numbers") from error
    return _Shard(str(path), _inputs_targets(named, path))


def _read_safetensors(path: Path) -> _Shard:
    try:
        named = safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise DataError(f"cannot read {path}: {error}; get a fresh copy of it") from error
    return _Shard(str(path), _inputs_targets(named, path))


def _inputs_targets(named: Mapping[str, Any], path: Path) -> tuple[Any, Any]:
    for inputs, targets in (("inputs", "targets"), ("x", "y")):
        if inputs in named and targets in named:
            return named[inputs], named[targets]
    raise DataError(
        f"{path} must hold 'inputs' and 'targets', or 'x' and 'y', got {sorted(named)}: rename them"
    )


def _read_parquet(path: Path) -> _Shard:
    require(str(path), "parquet", "pyarrow.parquet")
    arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
    try:
        table = parquet.read_table(path)
    except ValueError as error:  # pyarrow's error for a damaged file
        raise DataError(f"cannot read {path}: {error}; get a fresh copy of it") from error
    names, is_ = table.column_names, arrow.types
    numeric: dict[str, Any] = {}
    for name, column in zip(names, table.columns, strict=True):
        kind = column.type
        if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_boolean(kind):
            if column.null_count:
                raise DataError(f"{path}: column {name!r} has {column.null_count} gaps: fill them")
            numeric[name] = np.asarray(column)
    return _table(path, names, numeric)


def _read_csv(path: Path) -> _Shard:
    """A table with a header. A column is numeric if all its fields are numbers."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; save it as a UTF-8 table") from error
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise DataError(
                f"{path}: row {number} has {len(row)} fields, the header has {len(names)}: "
                "give every row one field per column"
            )
    numeric: dict[str, Any] = {}
    for name, column in zip(names, zip(*rows, strict=True), strict=False):
        fields = [field.strip() for field in column]
        gaps = sum(not field for field in fields)
        values = _numbers([field for field in fields if field])
        if values is not None and gaps < len(fields):
            if gaps:
                raise DataError(f"{path}: column {name!r} has {gaps} gaps: fill them")
            numeric[name] = values
    if not rows:
        raise DataError(f"{path} has no examples: give it some or leave it out")
    return _table(path, names, numeric)


def _numbers(fields: Sequence[str]) -> Any:
    """The fields as an array of integers or floats; None if they are not numbers."""
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(field) for field in fields])
        except (ValueError, OverflowError):
            continue
    return None


def _table(path: Path, names: Sequence[str], numeric: dict[str, Any]) -> _Shard:
    """The target is the column `target`, or else the last one."""
    target = "target" if "target" in names else names[-1] if names else "target"
    if target not in numeric or len(numeric) < 2:
        raise DataError(
            f"{path} needs a numeric target and at least one other numeric column, has {names}, of "
            f"which {list(numeric)} are numeric, and takes {target!r} as the target"
        )
    targets = numeric.pop(target)
    inputs = np.stack([np.asarray(c, np.float32) for c in numeric.values()], axis=1)
    return _Shard(str(path), (inputs, targets), tuple(numeric))


_READERS: dict[str, Callable[[Path], _Shard]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
    ".csv": _read_csv,
}
