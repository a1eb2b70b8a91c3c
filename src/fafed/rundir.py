"""A run's directory: everything that a run leaves behind, and what it needs to go on.

    experiment.toml    the configuration
    environment.json   versions, git revision, threads, engine
    clients.json       clients x classes, for the report
    records.jsonl      one line per round, appended
    checkpoints/       the last states
    before-1/          records and checkpoints that were moved out of the way by --again

A record is written before its round's checkpoint: records beyond the newest usable checkpoint
belong to rounds that were cut short, and are made again when the run goes on. A checkpoint beyond
the records is a sign of damage. Where the run cannot go on, it is refused and nothing is changed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from filelock import FileLock, Timeout

from fafed import __version__, allocation, files, records
from fafed.errors import ConfigError, FafedError, without_passwords
from fafed.experiment import Experiment
from fafed.files import Damaged
from fafed.records import Record
from fafed.report.runs import RunData
from fafed.stopping import Stopping

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
        path = self.path / "experiment.toml"
        try:
            return Experiment.read(path)
        except (ValueError, TypeError) as cause:  # a ConfigError is one, too
            told = str(cause).removeprefix(f"{path}: ")
            raise ConfigError(f"{path}: {told}. Set it back, or restore it") from cause

    def records(self) -> list[Record]:
        """The rounds so far; a line cut short by a kill is left out."""
        newest = self._newest()  # looked up first: a run that is under way writes it last
        lines = records.read(self._records)
        if lines.wrong:
            raise Damaged(f"{self._records}, {lines.wrong}: the file is damaged. {self._cure()}")
        if len(lines.records) < newest:
            raise Damaged(
                f"{self._records} ends with line {len(lines.records)}, but there is a checkpoint "
                f"of round {newest}: lines are missing. {self._cure()}"
            )
        return lines.records

    def round(self) -> int:
        """Rounds finished, by the last line."""
        last = self.last()
        return last.round if last else 0

    def last(self) -> Record | None:
        """The last record."""
        try:
            return records.last(self._records)
        except (ValueError, TypeError) as error:
            raise Damaged(
                f"{self._records}, last line: {error}: the file is damaged. {self._cure()}"
            ) from error

    def finished(self) -> bool:
        """The last record is there, and its checkpoint (unless all were thrown away): a run may
        be killed between the two. A damaged run is not finished: to go on mends it, or says why
        that cannot be."""
        newest = self._newest()
        try:
            if not self.exists or self.round() < (rounds := self.experiment().rounds):
                return False
        except FafedError:
            return False
        return not newest or newest >= rounds

    def _newest(self) -> int:
        """The round of the newest checkpoint, whole or not."""
        names = (path.stem for path in self.checkpoints.glob("round-*.safetensors"))
        return max((int(name[6:]) for name in names if name[6:].isdecimal()), default=0)

    @property
    def _records(self) -> Path:
        return self.path / "records.jsonl"

    def _cure(self) -> str:
        return (
            f"`fafed resume {self.path}` goes on from a checkpoint if one fits; else restore the "
            "file from a backup, or begin anew with --again, which moves what is there aside"
        )

    def failure(self) -> str | None:
        """Why the run cannot go on, if it diverged."""
        path = self.path / "failure.txt"
        return path.read_text("utf-8", "replace") if path.is_file() else None

    def data(self) -> RunData:
        """What a report is made from. Raises `Damaged`, or what else is wrong with a file."""
        experiment, environment = self.experiment(), self.json("environment.json")
        if environment.get("digest") not in (None, experiment.digest):
            raise Damaged(
                f"{self.path / 'experiment.toml'} is not the one that the records were made with: "
                "set it back to that, or begin anew with "
                f"`fafed resume {self.path} --again`, which moves the records aside"
            )
        clients = self.json("clients.json")
        rows = [record.to_dict() for record in self.records()]
        if any(row["train"] for row in rows):  # better than the clients' own
            for row in rows:
                row["train_loss"] = row["train"].get("loss")
        return RunData(
            name=self.path.name,
            config=experiment.to_dict(),
            records=rows,
            counts=clients.get("counts"),
            classes=clients.get("classes"),
            finished=self.finished(),
            failure=self.failure(),
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory; a second process is refused. The lock dies with its process."""
        files.make_folder(self.path)
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

    def json(self, name: str, cure: str | None = None) -> dict[str, Any]:
        """The content of a file that `write_json` has written; empty if there is none."""
        path = self.path / name
        try:
            return files.unsealed(json.loads(path.read_bytes())) if path.is_file() else {}
        except (OSError, ValueError, RecursionError) as cause:
            again = f"delete it: `fafed resume {self.path}` writes it again"
            raise Damaged(
                f"{path} is damaged: {cause}. Restore it from a backup, or {cure or again}"
            ) from cause

    def write_json(self, name: str, content: dict[str, Any], **layout: Any) -> None:
        text = json.dumps(files.sealed(content), **layout)
        path = self.path / name
        if not path.is_file() or path.read_bytes() != text.encode():  # to wait for a disk is slow
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        """Whole or not at all, also after a power cut."""
        files.write(self.path / name, [text.encode()])

    def set_aside(self) -> None:
        """Move records and checkpoints into a folder of their own: the run begins anew."""
        there = [self._records, self.checkpoints, self.path / "failure.txt"]
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


OnRecord = Callable[[Record], None]


def execute(
    experiment: Experiment,
    place: RunDir,
    on_record: OnRecord | None = None,
    prepare: Callable[[Experiment, str | None], Any] | None = None,
    *,
    again: bool = False,
    lag: float | None = None,
) -> None:
    """Run the experiment in its directory, from where it stopped if it was begun before.

    An interrupt (Ctrl-C, SIGTERM) loses at most the round under way, a kill what follows the last
    checkpoint, a power cut what follows the last one that is older than `lag` seconds (None: see
    `checkpoint.LAG`). `again` begins with round 1 and moves what is there aside. `prepare` makes
    the run: in simulation if it is None.
    """
    from fafed import checkpoint, preparation

    allocation.keep_memory()
    with place.locked(), Stopping() as stopping:
        files.sweep(place.path)
        files.sweep(place.checkpoints)
        if again:
            place.set_aside()
        start = _start(place, experiment)
        if not place.exists or not _same(place, experiment):
            place.write("experiment.toml", experiment.to_toml())
        engine = checkpoint.engine_of(start.path) if start.path else None
        prepared = (prepare or preparation.prepare)(experiment, engine)
        run = prepared.run
        if start.path:
            checkpoint.load(run, start.path, *start.digests)
        checkpoint.share(run)
        _cut(place, start, run.state.round)
        (place.path / "failure.txt").unlink(missing_ok=True)
        told = environment(prepared) | {"digest": experiment.digest}
        place.write_json("environment.json", told, indent=2)
        shards = prepared.shards
        if shards.counts is not None:
            place.write_json("clients.json", {"classes": shards.classes, "counts": shards.counts})
        descriptor = os.open(place._records, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            place.checkpoints.mkdir(exist_ok=True)
            files.sync_path(place.path)
            pace = checkpoint.LAG if lag is None else lag
            saver = checkpoint.Saver(place.checkpoints, experiment.digest, pace)
            _go_on(run, experiment, place, descriptor, saver, stopping, on_record)
        finally:
            os.close(descriptor)


def _go_on(
    run: Any,
    experiment: Experiment,
    place: RunDir,
    descriptor: int,
    saver: Any,
    stopping: Stopping,
    on_record: OnRecord | None,
) -> None:
    """Round after round; what was finished is saved, whatever ends them."""
    written = run.state.round
    ranks = getattr(run.engine, "ranks", None)  # the others have a part of the state
    stopping.at_once = lambda: run.underway
    try:
        for record in _until_divergence(run, place):
            stopping.saving = True
            _append(descriptor, place, records.to_line(record))
            written = record.round
            leave = agreed(run, stopping)
            if leave or due(record, experiment):
                saver.save(run, descriptor, last=leave or record.round == experiment.rounds)
            stopping.saving = False
            if on_record:
                on_record(record)
            if leave:
                end_together(ranks)
            if ranks is None:
                stopping.check()
    except BaseException:
        stopping.saving = True
        with contextlib.suppress(FafedError, OSError):  # the first error counts
            whole = ranks is None and not stopping.abrupt and run.state.round == written
            if whole and written > saver.round:
                saver.save(run, descriptor, last=True)
            saver.settle(descriptor)
        raise


def agreed(run: Any, stopping: Stopping) -> bool:
    """After a round on several ranks: whether one of them was asked to stop. Then all do."""
    ranks = getattr(run.engine, "ranks", None)
    return ranks is not None and ranks.any(stopping.asked is not None)


def end_together(ranks: Any) -> NoReturn:
    """Everything is saved. torchrun stops the others when one has ended, so none ends before."""
    ranks.any(True)
    raise KeyboardInterrupt


def _append(descriptor: int, place: RunDir, line: bytes) -> None:
    try:
        files.append(descriptor, line)
    except OSError as cause:
        raise FafedError(
            f"{place._records} could not be written: {cause}. Free some space and resume; the "
            "newest checkpoint is safe"
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


class _Start(NamedTuple):
    """Where a run begins or goes on."""

    path: Path | None  # the checkpoint
    digests: tuple[str, ...]
    lines: records.Lines
    newer: list[Path]  # checkpoints that cannot be used


def _start(place: RunDir, experiment: Experiment) -> _Start:
    """The newest checkpoint that is whole, this run's, and whose records are all there; says why
    one is passed over. Refuses to begin anew where that would write over records."""
    from fafed import checkpoint

    lines, there = records.read(place._records), checkpoint.found(place.checkpoints)
    if lines.wrong:
        log.warning("%s, %s: it is damaged from there on", place._records, lines.wrong)
    causes = []
    for path in there:
        round = checkpoint.round_of(path)
        # before there was a digest, a checkpoint carried the fingerprint, with the rounds in it
        earlier = (experiment.fingerprint, experiment.changed(rounds=max(1, round)).fingerprint)
        digests = (experiment.digest, *earlier)
        try:
            checkpoint.verify(path, *digests)
        except checkpoint.CheckpointError as error:
            causes.append(str(error))
        else:
            if round <= len(lines.records):
                return _Start(path, digests, lines, there[: there.index(path)])
            causes.append(
                f"checkpoint {path} needs {round} records, {place._records} has "
                f"{len(lines.records)} whole ones"
            )
        log.warning("%s; trying the one before it", causes[-1])
    if there or lines.there > experiment.checkpoint_every:
        why = "; ".join(causes) or f"{place.checkpoints} has none, {place._records} has records"
        raise FafedError(
            f"{place.path} cannot go on, because no checkpoint can be used: {why}. Restore the "
            "files from a backup, or set experiment.toml back if it was changed. To begin anew "
            f"with round 1: `fafed resume {place.path} --again`, which moves what is there aside"
        )
    if lines.there:  # killed before the first checkpoint
        place.set_aside()
    return _Start(None, (), records.read(place._records), [])


def _same(place: RunDir, experiment: Experiment) -> bool:
    """Whether the file says what is run; a damaged one does not."""
    try:
        found = place.experiment()
    except FafedError:
        return False
    return (found.digest, found.rounds) == (experiment.digest, experiment.rounds)


def _cut(place: RunDir, start: _Start, round: int) -> None:
    """Drop the records after this round: they are made again. Newer checkpoints step aside."""
    for newer in start.newer:
        newer.rename(newer.with_suffix(".aside"))
    if start.lines.there > round or start.lines.torn:
        content = b"".join(line + b"\n" for line in start.lines.raw[:round])
        files.write(place._records, [content])


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
