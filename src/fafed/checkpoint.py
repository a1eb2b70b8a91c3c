"""A run's state in a file, and back, bit for bit.

One safetensors file: the server's state and every client's, with a header that says which run and
round it is and a checksum of each tensor. What clients hold together, as SCAFFOLD's the model of
the last round, is written once, and held together again when it is read. A file is written beside
its final name and renamed, so it is either whole or not there; it is checked when read.
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
from fafed.engines.distributed import Distributed
from fafed.errors import FafedError
from fafed.run import Run, State, Totals

FORMAT = 2
READABLE = (1, 2)  # 1: everything is written as often as it is held
KEPT = 2  # the last ones, so that a damaged one does not end a run


class CheckpointError(FafedError):
    """A checkpoint that cannot be used."""


def save(run: Run, folder: Path, digest: str) -> Path:
    """Write the state after the last finished round; keeps the newest `KEPT` files."""
    state, engine = run.state, _keeping(run)
    tensors = tree.flatten((state.shared, state.buffers), "server")
    clients = engine.states
    present = [i for i, client in enumerate(clients) if client is not None]
    for i in present:
        tensors |= tree.flatten(clients[i], f"client.{i}")
    same = _repeated(tensors)
    tensors = {
        name: leaf.detach().contiguous().cpu() for name, leaf in tensors.items() if name not in same
    }
    header = {
        "format": FORMAT,
        "digest": digest,
        "round": state.round,
        "members": state.members,
        "totals": state.totals,
        "clients": present,
        "engine": engine.engine,
        "memo": getattr(engine, "memo", None),  # what a server remembers of real silos
        "checksums": {name: _checksum(leaf) for name, leaf in tensors.items()},
        "same": same,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{state.round:07d}.safetensors"
    part = path.with_suffix(".part")
    try:
        # leaves may be parts of one memory (clients side by side), which safetensors refuses
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
    engine = _keeping(run)
    tensors, header = verify(path, digest), _header(path)
    device = run.state.shared.x.device
    moved = {id(leaf): leaf.to(device) for leaf in tensors.values()}
    tensors = {name: moved[id(leaf)] for name, leaf in tensors.items()}
    states: list[ClientState | None] = [None] * engine.population
    like = run.state.shared, run.state.buffers
    fresh = tree.flatten(like, "server")
    if {name for name in tensors if name.startswith("server.")} <= set(fresh):
        # an option that came later and is not used keeps nothing
        tensors = {name: leaf for name, leaf in fresh.items() if not leaf.numel()} | tensors
    try:
        shared, buffers = tree.unflatten(like, tensors, "server")
        local = run.algorithm.join(shared.x)
        for i in header["clients"]:
            carried = any(name.startswith(f"client.{i}.hidden") for name in tensors)
            like = ClientState(local, engine.objective.hidden_like() if carried else ())
            states[i] = tree.unflatten(like, tensors, f"client.{i}")
    except KeyError as cause:
        raise CheckpointError(
            f"checkpoint {path} has no {cause}: another version of {type(run.algorithm).__name__} "
            "wrote it. Go on with that version, or start the run anew in another folder"
        ) from cause
    engine.states = states
    if header.get("memo") is not None:
        engine.memo = header["memo"]
    run.state = State(
        shared, buffers, header["round"], tuple(header["members"]), Totals(*header["totals"])
    )


def share(run: Run) -> None:
    """Give all ranks the state that rank 0 is in; a client's goes to the rank that hosts it."""
    if not isinstance(run.engine, Distributed):
        return
    ranks, (shared, buffers, *facts) = run.engine.ranks, run.state
    if ranks.rank == 0:
        for other in range(1, ranks.size):
            ranks.send(other, facts, tree.leaves((shared, buffers)))
    else:
        (round, members, totals), leaves = ranks.receive(0)
        moved = [leaf.to(shared.x.device) for leaf in leaves]
        shared, buffers = tree.rebuilt((shared, buffers), moved)
        run.state = State(shared, buffers, round, tuple(members), Totals(*totals))
    run.engine.deal()


def _keeping(run: Run) -> Any:
    """The engine, with what only those engines have whose runs can be saved: its name and what
    its clients keep. Real silos keep it themselves: their states are all None here."""
    return run.engine


def _header(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = json.loads((file.metadata() or {})["fafed"])
        if header["format"] not in READABLE:
            raise CheckpointError(
                f"checkpoint {path} has format {header['format']}, this fafed reads up to {FORMAT}"
            )
        return header
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as cause:
        raise CheckpointError(
            f"checkpoint {path} is damaged or not fafed's ({type(cause).__name__}: {cause})"
        ) from cause


def _tensors(path: Path, header: dict[str, Any]) -> dict[str, Tensor]:
    tensors, same = {}, header.get("same", {})
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        if names != set(header["checksums"]) or not set(same.values()) <= names:
            raise CheckpointError(f"checkpoint {path} is damaged: tensors are missing")
        for name, checksum in header["checksums"].items():
            tensors[name] = file.get_tensor(name)
            if _checksum(tensors[name]) != checksum:
                raise CheckpointError(f"checkpoint {path} is damaged: {name} fails its checksum")
    return tensors | {name: tensors[first] for name, first in same.items()}


def _checksum(leaf: Tensor) -> int:
    return zlib.crc32(leaf.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _repeated(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Name -> the first name of the very same tensor, for those that come again."""
    first: dict[Any, str] = {}
    found = {}
    for name, leaf in tensors.items():
        if leaf.numel():
            key = leaf.data_ptr(), leaf.dtype, leaf.shape, leaf.stride()
            earlier = first.setdefault(key, name)
            if earlier != name:
                found[name] = earlier
    return found


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    result = {}
    for name, leaf in tensors.items():
        pointer = leaf.untyped_storage().data_ptr()
        result[name] = leaf.clone() if pointer in seen else leaf
        seen.add(pointer)
    return result
