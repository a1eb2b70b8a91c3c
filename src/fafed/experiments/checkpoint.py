"""Write a run's state to a file and read it back, bit for bit.

A checkpoint is one safetensors file with the server's state and the state of every client. Its
header names the run and the round, and the checksum, type and shape of each tensor. The header has
its own checksum. A tensor that several clients share, such as the last model in SCAFFOLD, is
written once and shared again after reading. The file is written under another name and then
renamed, so it is either complete or absent. It is checked when it is read.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fafed import files
from fafed.core import tree
from fafed.engines.base import ClientState, Snapshot
from fafed.errors import FafedError
from fafed.experiments.config import Experiment
from fafed.training.loop import Run, State, Totals

FORMAT = 3
READABLE = (1, 2, 3)  # 1: shared tensors are written repeatedly; 2: the header has no checksum
KEPT = 2  # number of checkpoints kept, so that a damaged one does not end a run
LAG = 1.0  # seconds, at most, between two checkpoints that wait for the disk (about 20 ms each)
OLD_DIGEST = (
    ", or to this one with another number of rounds: it was written by an earlier fafed, which "
    "fixed them. Set rounds back to what they were, resume to that end, and raise them then"
)


class CheckpointError(FafedError):
    """A checkpoint that cannot be used."""


class Header(TypedDict):
    """What a checkpoint says about itself."""

    format: int
    digest: str
    round: int
    members: Sequence[int]
    totals: Totals  # in the file a list
    clients: list[int]  # those that keep something here
    engine: str
    memo: dict[str, list[int | str]]
    tensors: dict[str, list[int | str | list[int]]]  # name -> checksum, type, shape
    checksums: NotRequired[dict[str, int]]  # instead of tensors, before format 3
    same: NotRequired[dict[str, str]]


class Saver:
    """Writes the checkpoints of a run and decides which are kept.

    All checkpoints survive a kill. To survive a power cut, too, a checkpoint has to wait for the
    disk. This takes longer than a short round. So only the first checkpoint waits, then one every
    `lag` seconds, and the last. The newest of these is kept in addition to the newest `KEPT`.
    """

    def __init__(self, folder: Path, digest: str, lag: float = LAG) -> None:
        self.folder, self.digest, self.lag = folder, digest, lag
        self.newest = next(iter(found(folder)), None)
        self.safe: Path | None = None  # the last checkpoint that survives a power cut
        self.synced = time.monotonic()
        self.unsynced: list[Path] = []  # other files that the next checkpoint depends on
        if self.newest:
            files.sync_path(self.newest)
            files.sync_path(folder)
            self.safe = self.newest

    @property
    def round(self) -> int:
        """The round of the newest checkpoint."""
        return round_of(self.newest) if self.newest else 0

    def save(
        self, run: Run, records: int, *, last: bool, chosen: Mapping[str, Tensor] | None = None
    ) -> None:
        """Write the state after the last finished round. `records` is the file descriptor of the
        records. The checkpoint depends on them, so they reach the disk first. `chosen`: the model
        of an earlier round that the run would return (`fafed.training.output`)."""
        sync = last or not self.safe or time.monotonic() - self.synced >= self.lag
        if sync:
            try:
                os.fsync(records)
                self._sync_others()
            except OSError as cause:
                raise CheckpointError(
                    f"the records beside {self.folder} could not be written to the disk: {cause}. "
                    "Free some space and resume; the checkpoints are untouched"
                ) from cause
        keep = None if sync else self.safe
        self.newest = save(run, self.folder, self.digest, sync=sync, keep=keep, chosen=chosen)
        if sync:
            self.safe, self.synced = self.newest, time.monotonic()

    def settle(self, records: int) -> None:
        """Wait until everything written is on disk."""
        os.fsync(records)
        self._sync_others()
        if self.newest and self.newest != self.safe:
            files.sync_path(self.newest)
            files.sync_path(self.folder)
            self.safe = self.newest

    def _sync_others(self) -> None:
        for path in self.unsynced:
            if path.exists():
                files.sync_path(path)
        self.unsynced.clear()


def save(
    run: Run,
    folder: Path,
    digest: str,
    *,
    sync: bool = True,
    keep: Path | None = None,
    chosen: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the state after the last finished round. Delete older files, except `keep` and the
    newest `KEPT`, this one included."""
    state = run.state
    tensors = tree.flatten((state.shared, state.buffers), "server")
    clients, notes = run.engine.snapshot()
    present = [i for i, client in enumerate(clients) if client is not None]
    for i in present:
        tensors |= tree.flatten(clients[i], f"client.{i}")
    tensors |= chosen or {}
    same = repeated(tensors)
    tensors = {
        name: leaf.detach().contiguous().cpu() for name, leaf in tensors.items() if name not in same
    }
    header: Header = {
        "format": FORMAT,
        "digest": digest,
        "round": state.round,
        "members": state.members,
        "totals": state.totals,
        "clients": present,
        "engine": run.engine.name,
        "memo": notes,
        "tensors": {name: described(leaf) for name, leaf in tensors.items()},
        "same": same,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{state.round:07d}.safetensors"
    try:
        with files.replacing(path, sync=sync) as part:
            # leaves may share memory (clients stacked under vmap), which safetensors refuses
            save_file(unshared(tensors), part, {"fafed": json.dumps(files.sealed(header))})
    except (OSError, SafetensorError) as cause:
        raise CheckpointError(
            f"checkpoint {path} could not be written: {cause}. Free some space and resume; "
            "the checkpoints before it are untouched"
        ) from cause
    for old in [other for other in found(folder) if other <= path][KEPT:]:
        if old != keep:
            old.unlink(missing_ok=True)
    return path


def found(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def round_of(path: Path) -> int:
    """The round, from the name of the file."""
    digits = path.stem.removeprefix("round-")
    return int(digits) if digits.isdecimal() else 0


def engine_of(path: Path) -> str:
    """The engine that wrote it. A resumed run uses the same one, so that no digit changes."""
    return str(_header(path)["engine"])


def digest_of(path: Path) -> str:
    """The digest of the experiment that it belongs to."""
    return str(_header(path)["digest"])


def verify(path: Path, *digests: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, after all checks. It must belong to an experiment with one of
    these digests, if there are any."""
    header = _header(path)
    if digests and header["digest"] not in digests:
        raise CheckpointError(
            f"checkpoint {path} belongs to another experiment (its digest is "
            f"{header['digest'][:12]}, this run's is {digests[0][:12]})"
            + ("" if header["digest"].startswith("v2-") else OLD_DIGEST)
        )
    return _tensors(path, header)


def digests_of(experiment: Experiment, path: Path) -> tuple[str, ...]:
    """What a checkpoint of this experiment may carry. An old one has the fingerprint, which
    includes the number of rounds, in place of the digest."""
    then = experiment.changed(rounds=max(1, round_of(path)))
    now = experiment.digest, experiment.fingerprint, then.fingerprint
    return (*now, *experiment.earlier_digests)


def load(run: Run, path: Path, *digests: str) -> dict[str, Tensor]:
    """Put the run into the state of this checkpoint. Return the model of an earlier round that it
    keeps, if there is one."""
    engine = run.engine
    tensors, header = verify(path, *digests), _header(path)
    device = run.state.shared.x.device
    moved = {id(leaf): leaf.to(device) for leaf in tensors.values()}
    tensors = {name: moved[id(leaf)] for name, leaf in tensors.items()}
    states: list[ClientState | None] = [None] * engine.population
    like = run.state.shared, run.state.buffers
    fresh = tree.flatten(like, "server")
    if {name for name in tensors if name.startswith("server.")} <= set(fresh):
        # an option that is newer than the checkpoint, and not used, has no tensors
        tensors = {name: leaf for name, leaf in fresh.items() if not leaf.numel()} | tensors
    try:
        shared, buffers = tree.unflatten(like, tensors, "server")
        local = run.algorithm.join(shared.x)
        for i in header["clients"]:
            carried = any(name.startswith(f"client.{i}.hidden") for name in tensors)
            hidden = engine.objective.hidden_like() if carried else ()
            keeps = ClientState(local, hidden, engine.nothing_owed)
            states[i] = tree.unflatten(keeps, tensors, f"client.{i}")
    except KeyError as cause:
        raise CheckpointError(
            f"checkpoint {path} has no {cause}: another version of {type(run.algorithm).__name__} "
            "wrote it. Go on with that version, or start a new run in another folder"
        ) from cause
    engine.restore(Snapshot(states, header.get("memo") or {}))
    run.state = State(
        shared, buffers, header["round"], tuple(header["members"]), Totals(*header["totals"])
    )
    return {name: leaf for name, leaf in tensors.items() if name.startswith("chosen.")}


def share(run: Run) -> None:
    """Send rank 0's state to all ranks, and each client's state to the rank that hosts it."""
    ranks, (shared, buffers, *facts) = run.engine.ranks, run.state
    if ranks is None:
        return
    if ranks.rank == 0:
        for other in range(1, ranks.size):
            ranks.send(other, [*facts, run.first_loss], tree.leaves((shared, buffers)))
    else:
        (round, members, totals, run.first_loss), leaves = ranks.receive(0)
        moved = [leaf.to(shared.x.device) for leaf in leaves]
        shared, buffers = tree.rebuilt((shared, buffers), moved)
        run.state = State(shared, buffers, round, tuple(members), Totals(*totals))
    run.engine.deal()


def _header(path: Path) -> Header:
    try:
        with safe_open(path, framework="pt") as file:
            header = files.unsealed(written := json.loads((file.metadata() or {})["fafed"]))
        if header["format"] not in READABLE:
            raise CheckpointError(
                f"checkpoint {path} has format {header['format']}, this fafed reads up to {FORMAT}"
            )
        if header["format"] >= 3 and len(header) == len(written):
            raise ValueError("its header has no checksum")
        if header["round"] != round_of(path):
            raise ValueError(f"it is of round {header['round']}, and named otherwise")
        return cast(Header, header)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as cause:
        raise CheckpointError(
            f"checkpoint {path} is damaged or not fafed's ({type(cause).__name__}: {cause})"
        ) from cause


def _tensors(path: Path, header: Header) -> dict[str, Tensor]:
    tensors, same = {}, header.get("same", {})
    told: Mapping[str, object] = header["tensors"] if header["format"] >= 3 else header["checksums"]
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            if names != set(told) or not set(same.values()) <= names:
                raise CheckpointError(f"checkpoint {path} is damaged: tensors are missing")
            for name, what in told.items():
                leaf = tensors[name] = file.get_tensor(name)
                if what != (described(leaf) if header["format"] >= 3 else _checksum(leaf)):
                    raise CheckpointError(
                        f"checkpoint {path} is damaged: {name} fails its checksum"
                    )
    except (OSError, SafetensorError) as cause:
        raise CheckpointError(f"checkpoint {path} is damaged: {cause}") from cause
    return tensors | {name: tensors[first] for name, first in same.items()}


def described(leaf: Tensor) -> list[int | str | list[int]]:
    return [_checksum(leaf), str(leaf.dtype).removeprefix("torch."), list(leaf.shape)]


def _checksum(leaf: Tensor) -> int:
    return zlib.crc32(leaf.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def repeated(tensors: dict[str, Tensor]) -> dict[str, str]:
    """For tensors that occur more than once: name -> the first name of the same tensor."""
    first: dict[tuple[object, ...], str] = {}
    found = {}
    for name, leaf in tensors.items():
        if leaf.numel():
            key = leaf.data_ptr(), leaf.dtype, leaf.shape, leaf.stride()
            earlier = first.setdefault(key, name)
            if earlier != name:
                found[name] = earlier
    return found


def unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    result = {}
    for name, leaf in tensors.items():
        pointer = leaf.untyped_storage().data_ptr()
        result[name] = leaf.clone() if pointer in seen else leaf
        seen.add(pointer)
    return result
