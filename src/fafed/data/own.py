"""The user's own data: from a function, or from a folder with one file per client.

Floats become float32 and integers int64. All clients must have the same shapes and types. The items
of a Dataset stay as they are: they are read when a batch needs them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fafed.core import plugins
from fafed.data.datasets.cache import reading
from fafed.data.sources.tensors import as_tensors, plain
from fafed.data.tables import Table, read_csv, read_parquet
from fafed.errors import ConfigError, DataError

log = logging.getLogger("fafed")

Pair = tuple[Tensor, Tensor]  # inputs, targets


class Own(NamedTuple):
    clients: tuple[Any, ...]  # for each (inputs, targets), a mapping of tensors, or a Dataset
    test: Any  # one of these, or None


class _Shard(NamedTuple):
    name: str  # for errors
    data: Any  # a Dataset, (inputs, targets), or a mapping of tensors
    columns: tuple[str, ...] = ()  # of a table; their order must be the same, too
    notes: tuple[str, ...] = ()  # of a table


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


def from_folder(folder: str | Path, table: Table | None = None) -> Own:
    """One .npz, .safetensors, .parquet or .csv file per client, in the order of their names. A file
    called test.* is the test set.

    Arrays are called inputs and targets, or x and y. `table` has the rules for .parquet and .csv
    files. Without them the target is the column `target`, or else the last one, and all other
    numeric columns are the inputs.
    """
    clients, tests = files_in(folder)
    if len(tests) > 1:
        names = " and ".join(path.name for path in tests)
        raise DataError(f"{folder} holds more than one test set, {names}: keep one", fault="files")
    for path in clients:
        if path.stem.lower() in ("train", "val", "valid", "validation"):
            log.warning(
                "%s is read as a client, by the name of its file: one file per client, and test.*; "
                "validation data are a share of the clients' rows (data.validation = 0.1)",
                path,
            )
    rules = table or Table()
    found = [_read(path, rules) for path in clients]
    if not rules:  # with rules the user has said what becomes of each column
        for note in sorted({note for shard in found for note in shard.notes}):
            log.warning("%s: %s; rules for the table can make them inputs", folder, note)
    return _own(found, _read(tests[0], rules) if tests else None)


def files_in(folder: str | Path) -> tuple[list[Path], list[Path]]:
    """The files of the clients, at least one, and those of test sets."""
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder: name one that holds a file per client", fault="folder"
        )
    paths = sorted(path for path in folder.iterdir() if path.suffix in _READERS)
    paths = [path for path in paths if not path.name.startswith(".")]
    tests = [path for path in paths if path.stem == "test"]
    clients = [path for path in paths if path.stem != "test"]
    if not clients:
        inside = any(path.is_dir() for path in folder.iterdir())
        more = "; a client that is itself a folder of files is a fafed.data.Files" if inside else ""
        raise DataError(
            f"{folder} holds no client: put {', '.join(_READERS)} files there{more}", fault="files"
        )
    return clients, tests


def columns_in(path: Path, table: Table | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the inputs of a table, and notes on its gaps; none for a file of arrays."""
    found = _read(path, table or Table())
    return found.columns, found.notes


def from_file(path: str | Path, table: Table | None = None) -> Pair:
    """The inputs and targets of one .npz, .safetensors, .parquet or .csv file."""
    path = Path(path).expanduser()
    if path.suffix not in _READERS:
        raise DataError(f"{path} is of no kind that can be read: {', '.join(_READERS)}")
    inputs, targets = _settled_data(_read(path, table or Table()))
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
        raise DataError(f"{name} has no examples: give it some or leave it out", fault="empty")
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
        raise DataError(
            f"{name} hold NaN or infinity: clean them, training would only spread it",
            fault="not finite",
        )
    return tensor


def _kind(shard: _Shard, data: Any) -> str:
    if isinstance(data, dict):
        named = sorted(data.items())
        return ", ".join(f"{k} {tuple(part.shape[1:])} {part.dtype}" for k, part in named)
    inputs, targets = (f"{tuple(part.shape[1:])} {part.dtype}" for part in data)
    columns = f" (columns {', '.join(shard.columns)})" if shard.columns else ""
    return f"{inputs}{columns} -> {targets}"


def _read(path: Path, rules: Table) -> _Shard:
    with reading(path):
        if path.suffix in _TABLES:
            return _read_table(path, rules)
        return _ARRAYS[path.suffix](path)


def _read_npz(path: Path) -> _Shard:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            named = {name: arrays[name] for name in arrays.files}
    except ValueError as error:  # objects, which only a pickle could hold
        raise DataError(
            f"cannot read {path}: {error}; save plain arrays of numbers", fault="unreadable"
        ) from error
    return _Shard(str(path), _inputs_targets(named, path))


def _read_safetensors(path: Path) -> _Shard:
    try:
        named = safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise DataError(
            f"cannot read {path}: {error}; get a fresh copy of it", fault="unreadable"
        ) from error
    return _Shard(str(path), _inputs_targets(named, path))


def _inputs_targets(named: Mapping[str, Any], path: Path) -> tuple[Any, Any]:
    for inputs, targets in (("inputs", "targets"), ("x", "y")):
        if inputs in named and targets in named:
            return named[inputs], named[targets]
    raise DataError(
        f"{path} must hold 'inputs' and 'targets', or 'x' and 'y', got {sorted(named)}: rename "
        "them",
        fault="arrays",
    )


def _read_table(path: Path, rules: Table) -> _Shard:
    inputs, targets, columns, notes = _TABLES[path.suffix](path, rules)
    return _Shard(str(path), (inputs, targets), columns, notes)


_ARRAYS = {".npz": _read_npz, ".safetensors": _read_safetensors}
_TABLES = {".parquet": read_parquet, ".csv": read_csv}
_READERS = [*_ARRAYS, *_TABLES]
