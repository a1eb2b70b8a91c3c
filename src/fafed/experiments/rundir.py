"""A run's directory: everything that a run writes, and what it needs to resume.

    experiment.toml    the configuration
    environment.json   versions, git revision, threads, engine
    clients.json       clients x classes, for the report
    normalisation.json how inputs are normalised, if they are (`data.normalise`)
    records.jsonl      one line per round, appended
    checkpoints/       the last states, and the best one by validation loss
    model.safetensors  the model after the last round (see `model_file`)
    best.safetensors   the model with the lowest validation loss
    before-1/          records and checkpoints that --again has moved aside

A record is written before its round's checkpoint. Records after the newest usable checkpoint belong
to interrupted rounds, which are repeated when the run resumes. A checkpoint after the last record
is a sign of damage. If the run cannot resume, it is refused and nothing is changed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fafed import files
from fafed.core.records import Record
from fafed.core.run_data import RunData
from fafed.errors import ConfigError, FafedError
from fafed.experiments.config import Experiment
from fafed.experiments.record_lines import last, read
from fafed.files import Damaged

log = logging.getLogger("fafed")
NORMALISATION = "normalisation.json"
MODEL_FILES = {"last": "model.safetensors", "best": "best.safetensors"}


class Busy(FafedError):
    """Another process uses the run directory."""


class RunDir:
    """The directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def for_experiment(cls, experiment: Experiment, root: Path) -> RunDir:
        """The directory of this experiment's run. The same experiment has the same directory."""
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
        path = self.path / "experiment.toml"
        try:
            return Experiment.read(path)
        except (ValueError, TypeError) as cause:  # a ConfigError is one, too
            told = str(cause).removeprefix(f"{path}: ")
            raise ConfigError(f"{path}: {told}. Set it back, or restore it") from cause

    def records(self) -> list[Record]:
        """The records so far, without a line that a kill has cut short."""
        newest = self._newest()  # read this first: a running run writes it last
        lines = read(self._records)
        if lines.wrong:
            raise Damaged(f"{self._records}, {lines.wrong}: the file is damaged. {self._cure()}")
        if len(lines.records) < newest:
            raise Damaged(
                f"{self._records} ends with line {len(lines.records)}, but there is a checkpoint "
                f"of round {newest}: lines are missing. {self._cure()}"
            )
        return lines.records

    def of_silos(self) -> bool:
        """Whether a federation of silos makes the run."""
        return (self.path / "silos.json").is_file()

    def begun(self) -> bool:
        """Whether a round is finished. Damage is no obstacle: resuming repairs it, or refuses."""
        return bool(read(self._records).records)

    def round(self) -> int:
        """The number of finished rounds, from the last line."""
        last = self.last()
        return last.round if last else 0

    def last(self) -> Record | None:
        """The last record."""
        try:
            return last(self._records)
        except (ValueError, TypeError) as error:
            raise Damaged(
                f"{self._records}, last line: {error}: the file is damaged. {self._cure()}"
            ) from error

    def finished(self) -> bool:
        """Whether the last record and its checkpoint exist. A run may be killed between the two.
        (All checkpoints may have been deleted.) A damaged run is not finished: resuming repairs it,
        or says why it cannot."""
        newest = self._newest()
        try:
            if not self.exists or self.round() < (rounds := self.experiment().rounds):
                return False
        except FafedError:
            return False
        return not newest or newest >= rounds

    def _newest(self) -> int:
        """The round of the newest checkpoint, damaged or not."""
        names = (path.stem for path in self.checkpoints.glob("round-*.safetensors"))
        return max((int(name[6:]) for name in names if name[6:].isdecimal()), default=0)

    @property
    def _records(self) -> Path:
        return self.path / "records.jsonl"

    def _cure(self) -> str:
        return (
            f"{self.resuming} goes on from a checkpoint if one fits; else restore the file from a "
            f"backup. To start again with round 1: {self.starting_again}"
        )

    @property
    def resuming(self) -> str:
        """What resumes the run, for messages."""
        return "running its script again" if self.by_python else f"`fafed resume {self.path}`"

    @property
    def starting_again(self) -> str:
        """What starts the run with round 1, for messages."""
        if self.by_python:
            return "move the folder away and run its script again"
        return f"`fafed resume {self.path} --again`, which moves what is there aside"

    @property
    def by_python(self) -> bool:
        """Whether code began it, so that only the same code can go on with it."""
        try:
            return bool(self.experiment().python)
        except FafedError:
            return False

    def stamp(self) -> tuple[object, ...]:
        """Changes if another process has gone on with the run."""
        newest = max(self.checkpoints.glob("round-*.safetensors"), default=None)
        seen = newest.stat() if newest else None
        size = self._records.stat().st_size if self._records.is_file() else 0
        return newest, seen and (seen.st_mtime_ns, seen.st_ino), size

    def failure(self) -> str | None:
        """The error that ended the run, if it diverged."""
        path = self.path / "failure.txt"
        return path.read_text("utf-8", "replace") if path.is_file() else None

    def data(self) -> RunData:
        """The data for a report. Raises `Damaged`, or another error about a file."""
        experiment, environment = self.experiment(), self.json("environment.json")
        known = None, experiment.digest, experiment.digest_before, *experiment.earlier_digests
        if environment.get("digest") not in known:
            raise Damaged(
                f"{self.path / 'experiment.toml'} is not the one that the records were made with: "
                f"set it back to that. To start again with round 1: {self.starting_again}"
            )
        clients = self.json("clients.json")
        return RunData(
            name=self.path.name,
            config=experiment.to_dict(),
            records=[record.to_dict() for record in self.records()],
            counts=clients.get("counts"),
            classes=clients.get("classes"),
            finished=self.finished(),
            failure=self.failure(),
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory. A second process is refused. The lock ends with its process."""
        files.make_folder(self.path)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise Busy(
                f"{self.path} is in use by another process: wait for it, or stop it first"
            ) from None
        except OSError as cause:
            raise files.not_written(self.path, cause) from cause
        try:
            yield
        finally:
            lock.release()

    def json(self, name: str, cure: str | None = None) -> dict[str, Any]:
        """The content of a file that `write_json` has written; empty without a file."""
        path = self.path / name
        try:
            return files.unsealed(json.loads(path.read_bytes())) if path.is_file() else {}
        except (OSError, ValueError, RecursionError) as cause:
            again = f"delete it: {self.resuming} writes it again"
            raise Damaged(
                f"{path} is damaged: {cause}. Restore it from a backup, or {cure or again}"
            ) from cause

    def write_json(
        self,
        name: str,
        content: Mapping[str, object],
        *,
        indent: int | None = None,
        private: bool = False,
    ) -> None:
        text = json.dumps(files.sealed(content), indent=indent)
        path = self.path / name
        if not path.is_file() or path.read_bytes() != text.encode():  # to wait for a disk is slow
            self.write(name, text, private=private)

    def write(self, name: str, text: str, *, private: bool = False) -> None:
        """Whole or not at all, also after a power cut; for its owner alone if it is private."""
        files.write(self.path / name, [text.encode()], private=private)

    def set_aside(self) -> None:
        """Move records, checkpoints and models to a folder of their own. The run starts over."""
        there = [self._records, self.checkpoints, self.path / "failure.txt"]
        there += [self.path / name for name in MODEL_FILES.values()]
        if not any(path.exists() for path in there):
            return
        taken = [folder.name for folder in self.path.glob("before-*")]
        number = next(n for n in range(1, len(taken) + 2) if f"before-{n}" not in taken)
        aside = self.path / f"before-{number}"
        files.make_folder(aside)
        for path in there:
            if path.exists():
                path.rename(aside / path.name)
        files.sync_path(aside)
        files.sync_path(self.path)
        log.warning("what was there is now in %s", aside)


def all_runs(root: Path) -> list[RunDir]:
    """Every run below a folder, by name. Folders that vanish meanwhile are passed over: a run that
    starts again moves some aside."""
    there = (Path(at) for at, _, files in os.walk(root) if "experiment.toml" in files)
    return [RunDir(path) for path in sorted(there)]
