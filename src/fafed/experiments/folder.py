"""The folder of a run while it is under way: what is written after each round, and where a run
that has begun before goes on."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fafed import __version__, files
from fafed.core.records import History, Record
from fafed.errors import FafedError, without_passwords
from fafed.experiments import checkpoint, earlier
from fafed.experiments.config import Experiment
from fafed.experiments.model_keeper import ModelKeeper
from fafed.experiments.record_lines import Lines, read, to_line
from fafed.experiments.rundir import NORMALISATION, RunDir, log
from fafed.kernels import build
from fafed.training.loop import Diverged, Run
from fafed.training.output import Output

if TYPE_CHECKING:
    from fafed.data.normalise import Normalisation
    from fafed.experiments.assemble import Prepared
    from fafed.files import Json


class Memory:
    """What a run without a folder keeps: its records, and the model to return."""

    def __init__(self, output: Output | None = None) -> None:
        self.history = History()
        self.output = output or Output()

    def keep(self, run: Run, record: Record, *, leave: bool) -> None:
        self.output.look(record, run.state)
        self.history.append(record)

    def end(self, run: Run, error: BaseException, *, whole: bool) -> None:
        if isinstance(error, Diverged):
            error.history = self.history


class Folder:
    """What a run keeps in its folder. The caller has locked it."""

    def __init__(
        self,
        place: RunDir,
        experiment: Experiment,
        memory: Memory | None = None,
        *,
        again: bool = False,
        lag: float | None = None,
    ) -> None:
        """`again` moves existing records and checkpoints aside. `lag`: see `checkpoint.Saver`."""
        self.place, self.experiment = place, experiment
        self.memory = memory or Memory()
        self.lag = checkpoint.LAG if lag is None else lag
        files.sweep(place.path)
        files.sweep(place.checkpoints)
        if again:
            place.set_aside()
        self._start = _start(place, experiment)

    @property
    def engine(self) -> str | None:
        """The engine that the run must go on with; None: it has not begun."""
        return checkpoint.engine_of(self._start.path) if self._start.path else None

    def resume(self, prepared: Prepared) -> None:
        """Put the run into the state of the folder."""
        place, run, start = self.place, prepared.run, self._start
        self._objective = prepared.objective
        if not place.exists or not _same(place, self.experiment):
            place.write("experiment.toml", self.experiment.to_toml())
        chosen = checkpoint.load(run, start.path, *start.digests) if start.path else {}
        losses = (record.train_loss for record in start.lines.records)
        run.first_loss = next((loss for loss in losses if loss is not None), None)
        checkpoint.share(run)
        round = run.state.round
        _cut(place, start, round)
        self.memory.history[:] = start.lines.records[:round]
        self.memory.output.resume(self.memory.history, run.state, chosen)
        (place.path / "failure.txt").unlink(missing_ok=True)
        told = environment(prepared) | {"digest": self.experiment.digest}
        place.write_json("environment.json", told, indent=2)
        shards = prepared.shards
        _keep_normalisation(place, shards.normalisation)
        if shards.counts is not None:
            place.write_json("clients.json", {"classes": shards.classes, "counts": shards.counts})

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Open the files that `keep` writes to."""
        place = self.place
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._descriptor = os.open(place._records, flags, 0o666)
        try:
            place.checkpoints.mkdir(exist_ok=True)
            files.sync_path(place.path)
            self._saver = checkpoint.Saver(place.checkpoints, self.experiment.digest, self.lag)
            self._written = len(self.memory.history)
            digest, before = self.experiment.digest, self.memory.history
            self._models = ModelKeeper(place, digest, self._objective, before, self._saver)
            yield
        finally:
            os.close(self._descriptor)

    def keep(self, run: Run, record: Record, *, leave: bool) -> None:
        """Write the record, and the checkpoint if it is due."""
        self._append(to_line(record))
        self._written = record.round
        self.memory.keep(run, record, leave=leave)
        last = record.round == run.last_round
        self._models.after_round(run.state, record, last=last)
        if leave or due(record.round, self.experiment, run):
            self._save(run, last=leave or last)

    def end(self, run: Run, error: BaseException, *, whole: bool) -> None:
        """Save the finished rounds before the loop ends, unless they are not `whole`."""
        self.memory.end(run, error, whole=whole)
        if isinstance(error, Diverged):
            self.place.write("failure.txt", str(error))
        with contextlib.suppress(FafedError, OSError):  # the first error counts
            if whole and run.state.round == self._written > self._saver.round:
                self._save(run, last=True)
            self._saver.settle(self._descriptor)

    def _save(self, run: Run, *, last: bool) -> None:
        chosen = self.memory.output.tensors(run.state)
        self._saver.save(run, self._descriptor, last=last, chosen=chosen)

    def _append(self, line: bytes) -> None:
        try:
            files.append(self._descriptor, line)
        except OSError as cause:
            raise FafedError(
                f"{self.place._records} could not be written: {cause}. Free some space and resume; "
                "the newest checkpoint is safe"
            ) from cause


def due(round: int, experiment: Experiment, run: Run) -> bool:
    """Whether a checkpoint follows this round."""
    return round % experiment.checkpoint_every == 0 or round == run.last_round


class _Start(NamedTuple):
    """Where a run begins or resumes."""

    path: Path | None  # the checkpoint
    digests: tuple[str, ...]
    lines: Lines
    newer: list[Path]  # checkpoints that cannot be used


def _start(place: RunDir, experiment: Experiment) -> _Start:
    """The newest checkpoint that is undamaged, belongs to this run, and has all its records. Warns
    about each checkpoint that it skips. Refuses to start over if that would overwrite records."""
    lines, there = read(place._records), checkpoint.found(place.checkpoints)
    if lines.wrong:
        log.warning("%s, %s: it is damaged from there on", place._records, lines.wrong)
    causes = []
    for path in there:
        round = checkpoint.round_of(path)
        digests = checkpoint.digests_of(experiment, path)
        try:
            checkpoint.verify(path, *digests)
        except checkpoint.CheckpointError as error:
            if (then := earlier.begun_with(experiment)) and _begun_earlier(experiment, path):
                raise FafedError(f"{place.path} {then}: {place.starting_again}") from error
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
        if experiment.over_all_rounds:
            why += f". {rounds_matter(experiment)}"
        raise FafedError(
            f"{place.path} cannot go on, because no checkpoint can be used: {why}. Restore the "
            "files from a backup, or set experiment.toml back if it was changed. To start again "
            f"with round 1: {place.starting_again}"
        )
    if lines.there:  # killed before the first checkpoint
        place.set_aside()
    return _Start(None, (), read(place._records), [])


def _begun_earlier(experiment: Experiment, path: Path) -> bool:
    with contextlib.suppress(checkpoint.CheckpointError):
        return checkpoint.digest_of(path) == experiment.digest_before
    return False


def rounds_matter(experiment: Experiment) -> str:
    names = ", ".join(f"algorithm.{name}" for name in experiment.over_all_rounds)
    return (
        f"{names} follows the length of the run, so another number of rounds (now rounds is "
        f"{experiment.rounds}) changes rounds that are already made. Set rounds back, or start a "
        "new run that says how long it may become: a schedule with over = the number of steps "
        "(rounds times local_steps), FedKron with rounds"
    )


def _same(place: RunDir, experiment: Experiment) -> bool:
    """Whether the file holds this experiment. A damaged file does not."""
    try:
        found = place.experiment()
    except FafedError:
        return False
    return (found.digest, found.rounds) == (experiment.digest, experiment.rounds)


def _cut(place: RunDir, start: _Start, round: int) -> None:
    """Drop the records after this round, which will be repeated. Move newer checkpoints aside."""
    for newer in start.newer:
        newer.rename(newer.with_suffix(".aside"))
    if start.lines.there > round or start.lines.torn:
        content = b"".join(line + b"\n" for line in start.lines.raw[:round])
        files.write(place._records, [content])


def _keep_normalisation(place: RunDir, found: Normalisation | None) -> None:
    """Write how inputs are normalised, and refuse a run that has begun with something else."""
    before = place.json(NORMALISATION, "put the run's folder back")
    if found is None:
        return
    if before and before != found.to_dict():
        raise FafedError(
            f"{place.path} was begun with inputs of another mean or width, so its data has "
            f"changed: restore the data, or start again with round 1: {place.starting_again}"
        )
    place.write_json(NORMALISATION, found.to_dict())


def environment(prepared: Prepared) -> dict[str, Json]:
    import numpy
    import torch

    return {
        "fafed": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "engine": prepared.run.engine.name,
        "engine_because": prepared.run.engine.why,
        "compiler": build.available(torch.float32),
        "parameters": prepared.objective.x0.numel(),
        **({"model": dict(prepared.options)} if prepared.options else {}),
        "git": _git_revision(),
        "command": [Path(sys.argv[0]).name, *map(without_passwords, sys.argv[1:])],
    }


def _git_revision() -> str | None:
    """The git revision of the folder in which the run was started: the user's code."""
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
