"""A run's directory: everything that a run leaves behind, and what it needs to go on.

    experiment.toml    the configuration
    environment.json   versions, git revision, threads, engine
    clients.json       clients x classes, for the report
    records.jsonl      one line per round, appended and flushed
    checkpoints/       the last two states

A record is written before its round's checkpoint: records beyond the newest usable checkpoint
belong to a round that was cut short, and are dropped when the run goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fafed import __version__, allocation
from fafed.errors import ConfigError, FafedError, without_passwords
from fafed.experiment import Experiment
from fafed.records import Record
from fafed.report.runs import RunData

log = logging.getLogger("fafed")


class Busy(FafedError):
    """Another process works in the run directory."""


class RunDir:
    """The directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, experiment: Experiment, root: Path) -> RunDir:
        """Where this experiment's run lives: the same experiment, the same place."""
        return cls(root / experiment.name / experiment.label)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def exists(self) -> bool:
        return (self.path / "experiment.toml").is_file()

    def experiment(self) -> Experiment:
        if not self.exists:
            raise ConfigError(
                f"{self.path} is not a run directory (it has no experiment.toml): "
                "`fafed runs` lists those there are"
            )
        return Experiment.read(self.path / "experiment.toml")

    def records(self) -> list[Record]:
        """The rounds so far; a line cut short by a kill is left out."""
        return [Record(**json.loads(line)) for line in self._lines()]

    def round(self) -> int:
        """Rounds finished."""
        lines = self._lines()
        return int(json.loads(lines[-1])["round"]) if lines else 0

    def finished(self) -> bool:
        """The last record is there, and its checkpoint (unless all were thrown away): a run may
        be killed between the two."""
        if not self.exists or self.round() < (rounds := self.experiment().rounds):
            return False
        kept = sorted(self.checkpoints.glob("round-*.safetensors"))
        return not kept or int(kept[-1].stem.removeprefix("round-")) >= rounds

    def failure(self) -> str | None:
        """Why the run cannot go on, if it diverged."""
        path = self.path / "failure.txt"
        return path.read_text("utf-8") if path.is_file() else None

    def data(self) -> RunData:
        """What a report is made from."""
        clients = self._json("clients.json")
        records = [json.loads(line) for line in self._lines()]
        if any(record.get("train") for record in records):  # better than the clients' own
            for record in records:
                record["train_loss"] = (record.get("train") or {}).get("loss")
        return RunData(
            name=self.path.name,
            config=self.experiment().to_dict(),
            records=records,
            counts=clients.get("counts"),
            classes=clients.get("classes"),
            finished=self.finished(),
            failure=self.failure(),
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory; a second process is refused. The lock dies with its process."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise Busy(
                f"{self.path} is in use by another process: wait for it, or stop it first"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _lines(self) -> list[str]:
        path = self.path / "records.jsonl"
        if not path.is_file():
            return []
        whole = path.read_text("utf-8").split("\n")[:-1]  # what follows the last newline is cut
        return [line for line in whole if line]

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}

    def write(self, name: str, text: str) -> None:
        """Whole or not at all."""
        part = self.path / f".{name}.part"
        try:
            part.write_text(text, "utf-8")
            part.replace(self.path / name)
        except OSError as cause:
            raise FafedError(f"{self.path / name} could not be written: {cause}") from cause


OnRecord = Callable[[Record], None]


def execute(
    experiment: Experiment,
    place: RunDir,
    on_record: OnRecord | None = None,
    prepare: Callable[[Experiment, str | None], Any] | None = None,
) -> None:
    """Run the experiment in its directory, from where it stopped if it was begun before.

    An interrupt (Ctrl-C) or a kill at any moment loses at most the round under way. `prepare`
    makes the run: in simulation if it is None.
    """
    from fafed import checkpoint, preparation

    allocation.keep_memory()
    with place.locked():
        if not place.exists:
            place.write("experiment.toml", experiment.to_toml())
        digest = experiment.digest
        usable = _newest_usable(place, digest)
        engine = checkpoint.engine_of(usable) if usable else None
        prepared = (prepare or preparation.prepare)(experiment, engine)
        run = prepared.run
        if usable:
            checkpoint.load(run, usable, digest)
        checkpoint.share(run)
        _cut(place, run.state.round)
        (place.path / "failure.txt").unlink(missing_ok=True)
        place.write("environment.json", json.dumps(environment(prepared), indent=2))
        shards = prepared.shards
        if shards.counts is not None:
            picture = {"classes": shards.classes, "counts": shards.counts}
            place.write("clients.json", json.dumps(picture))
        # Unbuffered: closing it has nothing left to write, which would fail once more.
        with (place.path / "records.jsonl").open("ab", buffering=0) as file:
            for record in _until_divergence(run, place):
                _append(file, json.dumps(record.to_dict()) + "\n")
                if due(record, experiment):
                    checkpoint.save(run, place.checkpoints, digest)
                if on_record:
                    on_record(record)


def _append(file: FileIO, line: str) -> None:
    left = memoryview(line.encode())
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as cause:
        raise FafedError(
            f"{file.name} could not be written: {cause}. Free some space and resume; the newest "
            "checkpoint is safe"
        ) from cause


def due(record: Record, experiment: Experiment) -> bool:
    """Whether a checkpoint follows this round."""
    return record.round % experiment.checkpoint_every == 0 or record.round == experiment.rounds


def _until_divergence(run: Iterable[Record], place: RunDir) -> Iterator[Record]:
    from fafed.run import Diverged

    try:
        yield from run
    except Diverged as error:
        place.write("failure.txt", str(error))
        raise


def _newest_usable(place: RunDir, digest: str) -> Path | None:
    """The newest checkpoint that is whole and this run's; says why one is passed over."""
    from fafed import checkpoint

    for path in checkpoint.found(place.checkpoints):
        try:
            checkpoint.verify(path, digest)
        except checkpoint.CheckpointError as error:
            log.warning("%s; trying the one before it", error)
        else:
            return path
    return None


def _cut(place: RunDir, round: int) -> None:
    """Drop the records after this round."""
    kept = [line for line in place._lines() if json.loads(line)["round"] <= round]
    if (place.path / "records.jsonl").is_file():
        place.write("records.jsonl", "".join(line + "\n" for line in kept))


def environment(prepared: Any) -> dict[str, Any]:
    import numpy
    import torch

    return {
        "fafed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "engine": prepared.run.engine.engine,
        "parameters": prepared.objective.x0.numel(),
        "git": _git_revision(),
        "command": [Path(sys.argv[0]).name, *map(without_passwords, sys.argv[1:])],
    }


def _git_revision() -> str | None:
    """Of the folder the run was started in: the user's code, if it is under git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def all_runs(root: Path) -> list[RunDir]:
    """Every run below a folder, by name."""
    return [RunDir(path.parent) for path in sorted(root.rglob("experiment.toml"))]
