"""A run that Python code began, described as an `Experiment`.

Its folder has the same files as any other run. An experiment's file names its model and its data.
This description has their checksums instead: `[model] name = "python:Net"`, `[data] name =
"python"`, and a table `[python]` for what the code passed and an experiment has no field for. So
the digest covers all that decides the numbers. Only the same code with the same data goes on in the
folder.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fafed.algorithms import ALGORITHMS
from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.run_data import flatten, show
from fafed.core.schedules import NAMED, Schedule
from fafed.core.wire import Wire
from fafed.data.sources.examples import Examples
from fafed.data.sources.lazy import Lazy, LazyPart
from fafed.data.sources.tensors import Columns
from fafed.errors import ConfigError, FafedError
from fafed.experiments.config import Experiment
from fafed.experiments.folder import rounds_matter
from fafed.experiments.rundir import RunDir
from fafed.files import Json
from fafed.objectives.module import Model
from fafed.privacy.options import Privacy

SMALL = 2**24  # bytes that are read of a tensor; of a larger one a sample of its rows

# Arguments of `fafed.start` that do not change a number of a round. Every other argument counts.
FREE = {"rounds", "folder", "quiet", "track", "on_record", "workers", "checkpoint_every"}
FREE |= {"data_workers", "data_processes", "cache", "data_device"}
# Arguments that are described in another way.
_OBJECTS = {"model", "clients", "algorithm", "loss", "device", "metrics"}
_OBJECTS |= {"test", "validation", "client_test"}
HINTS = {
    "python.initial": "the model's initial values differ. Call torch.manual_seed before you build "
    "it, so that each start begins with the same ones",
    "python.clients": "the clients' data differ",
    "python.test": "the test data differ",
    "python.validation": "the validation data differ",
    "python.client_test": "the clients' test data differ",
}


def describe(
    arguments: Mapping[str, Any],
    source: Examples | Lazy,
    objective: Model,
    measured: Mapping[str, Columns | LazyPart],
    client_test: Sequence[Columns | LazyPart] = (),
) -> Experiment:
    """The run that these arguments of `fafed.start` make."""
    content: dict[str, Any] = {}
    python: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in _OBJECTS or value is None:
            continue
        if name in Experiment.model_fields and not callable(value):
            content[name] = value.to_dict() if isinstance(value, Privacy | Wire) else _listed(value)
        elif name not in FREE:
            python[name] = described(value)
    for part, data in measured.items():
        python[part] = _of_data(data)
    if client_test:
        python["client_test"] = [_of_data(data) for data in client_test]
    python["initial"] = checksum(
        {**dict(objective.module.named_parameters()), **dict(objective.module.named_buffers())}
    )
    python["clients"] = checksum(source.pool) if isinstance(source, Examples) else _of_lazy(source)
    python["examples"] = list(source.examples)
    if arguments["metrics"]:
        python["metrics"] = {name: described(m) for name, m in arguments["metrics"].items()}
    folder = arguments["folder"]
    name = re.sub(r"[^\w.-]", "-", Path(folder).name, flags=re.ASCII) if folder else "python"
    kind = type(objective.module).__name__
    content |= {
        "name": name if re.match(r"[A-Za-z0-9]", name) else f"run{name}",
        "device": str(objective.device),
        "loss": _text(described(arguments["loss"])),
        "metrics": list(arguments["metrics"] or {}),
        "data": {"name": "python", "clients": len(source.examples), "train_sample": 0}
        | {"partition": {"kind": "given"}},
        "model": {"name": f"python:{kind}", "parameters": objective.x0.numel()},
        "algorithm": _algorithm(arguments["algorithm"]),
        "python": python,
    }
    return Experiment.from_dict(content, "the arguments")


def _of_data(data: Columns | LazyPart) -> str:
    """A checksum of data for evaluation. Of data that is read batch by batch: of its length."""
    if isinstance(data, LazyPart):
        return f"{sum(len(items) for _, items in data.rows)} items"
    return checksum(data if isinstance(data, Mapping) else list(data))


def _of_lazy(source: Lazy) -> str:
    """A checksum of the first batch of a few clients: to read everything would take too long."""
    few = range(min(4, len(source.examples)))
    drawn = [source.draw(("round",), client, 0, 1) for client in few]
    return checksum(tree.leaves([next(iter(source.batches(one))).data for one in drawn]))


def check_same(place: RunDir, experiment: Experiment) -> None:
    """Refuse a folder that holds another run, and say what differs. A run without a finished round
    is none."""
    if not place.round() and not any(place.checkpoints.glob("round-*")):
        return
    try:
        there = place.experiment() if place.exists else None
    except FafedError:  # a damaged file: the checkpoints tell whose they are
        there = None
    if there is not None and there.digest != experiment.digest:
        raise ConfigError(
            f"{place.path} holds another run: {_difference(there, experiment)}. Set it back to go "
            "on with that run, or give this one another folder"
        )
    if (done := place.round()) > experiment.rounds:
        raise ConfigError(
            f"rounds is {experiment.rounds}, but {place.path} has {done} finished rounds: give at "
            "least as many, or another folder"
        )


def _difference(there: Experiment, here: Experiment) -> str:
    if not there.python:
        return "it was begun from an experiment's file"
    old, new = (flatten(json.loads(json.dumps(one.decisive()))) for one in (there, here))
    other_algorithm = old.get("algorithm.name") != new.get("algorithm.name")
    found = []
    for key in dict.fromkeys((*old, *new)):
        if key == "rounds":
            if here.over_all_rounds and there.rounds != here.rounds:
                found.append(rounds_matter(here))
        elif key.startswith("algorithm.") and other_algorithm and key != "algorithm.name":
            continue  # two algorithms have different settings anyway
        elif old.get(key) != new.get(key):
            was, now = (show(one[key]) if key in one else "not given" for one in (old, new))
            told = f"{key.removeprefix('python.')} is {now}, there it is {was}"
            found.append(HINTS.get(key, told))
    return "; ".join(found)


def _algorithm(algorithm: AnyAlgorithm) -> dict[str, Json]:
    kind = type(algorithm)
    known = {cls: name for name, cls in ALGORITHMS.items()}
    name = known.get(kind, f"{kind.__module__}:{kind.__qualname__}")
    return {"name": name, **_fields(algorithm)}


def described(value: Any) -> Any:
    """A value in a form that TOML has. Two values that differ have two descriptions, as far as one
    can see from outside: of a function there is only its name."""
    if value is None:
        return "none"
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, Tensor | np.ndarray):
        return checksum([torch.as_tensor(value)])
    if isinstance(value, Mapping):
        return {str(key): described(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [described(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((described(one) for one in value), key=str)
    if isinstance(value, functools.partial):
        given = {"function": described(value.func)}
        given |= {"args": described(value.args)} if value.args else {}
        return given | described(value.keywords)
    if isinstance(value, Schedule) and (kind := _kind(value)):
        return {"schedule": kind, **_fields(value)}
    if isinstance(name := getattr(value, "__qualname__", None), str):  # a function or a class
        return name
    return {"class": type(value).__qualname__, **_fields(value)}


def _listed(value: Any) -> Any:
    """Lists in place of arrays, tuples and ranges."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, str | int | float):
        return value
    return [_listed(one) for one in value]


def _kind(schedule: Schedule) -> str | None:
    return next((name for name, kind in NAMED.items() if type(schedule) is kind), None)


def _fields(value: Any) -> dict[str, Any]:
    """What an object holds: a dataclass's fields, a module's settings and tensors, or attributes
    that are plain values."""
    if dataclasses.is_dataclass(value):
        own = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return {name: described(one) for name, one in own.items() if one is not None}
    if isinstance(value, nn.Module) and (tensors := value.state_dict()):
        return _plain(value) | {"tensors": checksum(tensors)}
    return _plain(value)


def _plain(value: object) -> dict[str, Any]:
    own = getattr(value, "__dict__", {})
    plain = (bool, int, float, str)
    return {
        name: described(one)
        for name, one in own.items()
        if not name.startswith("_") and isinstance(one, plain)
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def checksum(tensors: Mapping[str, Tensor] | Iterable[Tensor]) -> str:
    """A hash of names, shapes, types and numbers. It costs little: of a tensor of more than 16 MiB
    it reads a fixed sample of its rows."""
    named = tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors)
    total = hashlib.sha256()
    for name, tensor in named:
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        total.update(_bytes(tensor.detach()))
    return total.hexdigest()[:16]


def _bytes(tensor: Tensor) -> Any:
    if tensor.numel() * tensor.element_size() > SMALL:
        rows = tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None]
        if 64 * rows.shape[1] * rows.element_size() > SMALL:  # few rows, and long ones
            rows = tensor.reshape(-1, 1)
        count = min(len(rows), SMALL // (rows.shape[1] * rows.element_size()))
        chosen = torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).long()
        tensor = rows[chosen.to(rows.device)]
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
