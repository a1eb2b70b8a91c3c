"""The user's own data: from a function, or from a folder with one file per client.

Floats become float32 and integers int64. All clients must have the same shapes and types.
"""

from __future__ import annotations

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
from fafed.data.sources.examples import as_tensors
from fafed.errors import ConfigError, DataError

Pair = tuple[Tensor, Tensor] | dict[str, Tensor]  # inputs, targets; or tensors by name


class Own(NamedTuple):
    clients: tuple[Pair, ...]
    test: Pair | None


class _Shard(NamedTuple):
    name: str  # for errors
    data: Any  # a Dataset or (inputs, targets)
    columns: tuple[str, ...] = ()  # of a table; their order must be the same, too


def from_function(path: str, **options: Any) -> Own:
    """Call the function "module:function" with the options.

    It returns (clients, test). clients is a list with one (inputs, targets), mapping of names to
    tensors, or map-style Dataset per client. test is one of these, or None.
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
    """One .npz, .safetensors or .parquet file per client, in the order of their names. A file
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
    """The inputs and targets of one .npz, .safetensors or .parquet file."""
    path = Path(path).expanduser()
    if path.suffix not in _READERS:
        raise DataError(f"{path} is of no kind that can be read: {', '.join(_READERS)}")
    return _pair(_read(path))


def _own(clients: Sequence[_Shard], test: _Shard | None) -> Own:
    first, kind = clients[0], ""
    pairs = []
    for shard in [*clients, *([] if test is None else [test])]:
        pair = _pair(shard)
        own_kind = _kind(shard, pair)
        kind = kind or own_kind
        if own_kind != kind:
            raise DataError(
                f"{first.name} and {shard.name} do not fit together: an example of the first is "
                f"{kind}, of the second {own_kind}; make them alike"
            )
        pairs.append(pair)
    return Own(tuple(pairs[: len(clients)]), None if test is None else pairs[-1])


def _pair(shard: _Shard) -> Pair:
    data = shard.data
    if isinstance(data, tuple | list):
        data = tuple(_native(part) if isinstance(part, np.ndarray) else part for part in data)
    tensors = as_tensors(data, shard.name)
    if isinstance(tensors, dict):
        if len(next(iter(tensors.values()))) == 0:
            raise DataError(f"{shard.name} has no examples: give it some or leave it out")
        return {key: _settled(part, f"{shard.name}: {key}") for key, part in tensors.items()}
    if len(tensors) != 2:
        raise DataError(f"{shard.name} must be (inputs, targets), got {len(tensors)} tensors")
    if len(tensors[0]) == 0:
        raise DataError(f"{shard.name} has no examples: give it some or leave it out")
    inputs, targets = tensors
    return _settled(inputs, f"{shard.name}: inputs"), _settled(targets, f"{shard.name}: targets")


def _native(array: Any) -> Any:
    """The array as torch needs it: in this machine's byte order, and writable."""
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


def _kind(shard: _Shard, pair: Pair) -> str:
    if isinstance(pair, dict):
        named = sorted(pair.items())
        return ", ".join(f"{key} {tuple(part.shape[1:])} {part.dtype}" for key, part in named)
    inputs, targets = (f"{tuple(part.shape[1:])} {part.dtype}" for part in pair)
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
    numeric = {
        name: column
        for name, column in zip(names, table.columns, strict=True)
        if is_.is_integer(column.type)
        or is_.is_floating(column.type)
        or is_.is_boolean(column.type)
    }
    for name, column in numeric.items():
        if column.null_count:
            raise DataError(f"{path}: column {name!r} has {column.null_count} gaps: fill them")
    target = "target" if "target" in names else names[-1] if names else "target"
    if target not in numeric or len(numeric) < 2:
        raise DataError(
            f"{path} needs a numeric target and at least one other numeric column, has {names}, of "
            f"which {list(numeric)} are numeric, and takes {target!r} as the target"
        )
    targets = np.asarray(numeric.pop(target))
    inputs = np.stack([np.asarray(c, np.float32) for c in numeric.values()], axis=1)
    return _Shard(str(path), (inputs, targets), tuple(numeric))


_READERS: dict[str, Callable[[Path], _Shard]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
}
