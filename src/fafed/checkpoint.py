"""A run's state in a file, and back, bit for bit.

One safetensors file: the server's state and every client's, with a header that says which run and
round it is and a checksum of each tensor. A file is written beside its final name and renamed, so
it is either whole or not there; it is checked when read.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fafed import tree
from fafed.engines.client import ClientState
from fafed.engines.simulation import Simulation
from fafed.errors import FafedError
from fafed.run import Run, State, Totals

FORMAT = 1
KEPT = 2  # the last ones, so that a damaged one does not end a run


class CheckpointError(FafedError):
    """A checkpoint that cannot be used."""


def save(run: Run, folder: Path, digest: str) -> Path:
    """Write the state after the last finished round; keeps the newest `KEPT` files."""
    assert isinstance(run.engine, Simulation)
    state = run.state
    tensors = tree.flatten((state.shared, state.buffers), "server")
    present = [i for i, client in enumerate(run.engine.states) if client is not None]
    for i in present:
        tensors |= tree.flatten(run.engine.states[i], f"client.{i}")
    tensors = {name: leaf.detach().contiguous().cpu() for name, leaf in tensors.items()}
    header = {
        "format": FORMAT,
        "digest": digest,
        "round": state.round,
        "members": state.members,
        "totals": state.totals,
        "clients": present,
        "engine": run.engine.engine,
        "checksums": {name: _checksum(leaf) for name, leaf in tensors.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{state.round:07d}.safetensors"
    part = path.with_suffix(".part")
    try:
        # leaves may share memory (a client's x is the server's), which safetensors refuses
        save_file(_unshared(tensors), part, {"fafed": json.dumps(header)})
        part.replace(path)
    except (OSError, SafetensorError) as cause:
        part.unlink(missing_ok=True)
        raise CheckpointError(
            f"checkpoint {path} could not be written: {cause}. Free some space and resume; "
            "the checkpoints before it are untouched"
        ) from cause
    for old in found(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def found(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def engine_of(path: Path) -> str:
    """The engine that wrote it: a resumed run stays on it, so that every digit stays."""
    return str(_header(path)["engine"])


def verify(path: Path, digest: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, after every check that can be made."""
    header = _header(path)
    if header["digest"] != digest:
        raise CheckpointError(
            f"checkpoint {path} belongs to another experiment (its digest is "
            f"{header['digest'][:12]}, this run's is {digest[:12]})"
        )
    return _tensors(path, header)


def load(run: Run, path: Path, digest: str) -> None:
    """Put the run into the state of this checkpoint."""
    assert isinstance(run.engine, Simulation)
    tensors, header = verify(path, digest), _header(path)
    device = run.state.shared.x.device
    tensors = {name: leaf.to(device) for name, leaf in tensors.items()}
    objective = run.engine.objective
    shared, buffers = tree.unflatten((run.state.shared, run.state.buffers), tensors, "server")
    local = run.algorithm.join(shared.x)
    states: list[ClientState | None] = [None] * run.engine.population
    for i in header["clients"]:
        carried = any(name.startswith(f"client.{i}.hidden") for name in tensors)
        like = ClientState(local, objective.hidden_like() if carried else ())
        states[i] = tree.unflatten(like, tensors, f"client.{i}")
    run.engine.states = states
    run.state = State(
        shared, buffers, header["round"], tuple(header["members"]), Totals(*header["totals"])
    )


def _header(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = json.loads((file.metadata() or {})["fafed"])
        if header["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {header['format']}, this fafed reads {FORMAT}"
            )
        return header
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as cause:
        raise CheckpointError(
            f"checkpoint {path} is damaged or not fafed's ({type(cause).__name__}: {cause})"
        ) from cause


def _tensors(path: Path, header: dict[str, Any]) -> dict[str, Tensor]:
    tensors = {}
    with safe_open(path, framework="pt") as file:
        if set(file.keys()) != set(header["checksums"]):
            raise CheckpointError(f"checkpoint {path} is damaged: tensors are missing")
        for name, checksum in header["checksums"].items():
            tensors[name] = file.get_tensor(name)
            if _checksum(tensors[name]) != checksum:
                raise CheckpointError(f"checkpoint {path} is damaged: {name} fails its checksum")
    return tensors


def _checksum(leaf: Tensor) -> int:
    return zlib.crc32(leaf.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    result = {}
    for name, leaf in tensors.items():
        pointer = leaf.untyped_storage().data_ptr()
        result[name] = leaf.clone() if pointer in seen else leaf
        seen.add(pointer)
    return result
