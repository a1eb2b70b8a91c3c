"""Run an experiment in its directory, or resume it there."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from fafed import __version__, files
from fafed.core.records import Record
from fafed.errors import FafedError, without_passwords
from fafed.experiments.config import Experiment
from fafed.experiments.record_lines import Lines, read, to_line
from fafed.experiments.rundir import RunDir, log
from fafed.experiments.stopping import Stopping
from fafed.kernels import build, malloc

if TYPE_CHECKING:  # these imports load torch
    from fafed.engines.ranks import Ranks
    from fafed.experiments.assemble import Prepared
    from fafed.experiments.checkpoint import Saver
    from fafed.files import Json
    from fafed.training.loop import Run

OnRecord = Callable[[Record], None]


def execute(
    experiment: Experiment,
    place: RunDir,
    on_record: OnRecord | None = None,
    prepare: Callable[[Experiment, str | None], Prepared] | None = None,
    *,
    again: bool = False,
    lag: float | None = None,
) -> None:
    """Run the experiment in its directory. Resume it if it has begun before.

    An interrupt (Ctrl-C, SIGTERM) loses at most the current round. A kill loses the rounds after
    the last checkpoint. A power cut loses the rounds after the last checkpoint that is older than
    `lag` seconds (None: see `checkpoint.LAG`). `again` moves existing records and checkpoints aside
    and begins with round 1. `prepare` makes the run; None: in simulation.
    """
    from fafed.experiments import assemble, checkpoint

    malloc.keep_freed_memory()
    with place.locked(), Stopping() as stopping:
        files.sweep(place.path)
        files.sweep(place.checkpoints)
        if again:
            place.set_aside()
        start = _start(place, experiment)
        if not place.exists or not _same(place, experiment):
            place.write("experiment.toml", experiment.to_toml())
        engine = checkpoint.engine_of(start.path) if start.path else None
        prepared = (prepare or assemble.prepare)(experiment, engine)
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
    run: Run,
    experiment: Experiment,
    place: RunDir,
    descriptor: int,
    saver: Saver,
    stopping: Stopping,
    on_record: OnRecord | None,
) -> None:
    """Make round after round. Finished rounds are saved, whatever ends the loop."""
    written = run.state.round
    ranks = run.engine.ranks  # the other ranks have a part of the state
    stopping.at_once = lambda: run.underway
    try:
        for record in _until_divergence(run, place):
            stopping.saving = True
            _append(descriptor, place, to_line(record))
            written = record.round
            leave = agreed(run, stopping)
            if leave or due(record, experiment):
                saver.save(run, descriptor, last=leave or record.round == experiment.rounds)
            stopping.saving = False
            if on_record:
                on_record(record)
            if leave and ranks is not None:
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


def agreed(run: Run, stopping: Stopping) -> bool:
    """After a round on several ranks: whether any rank was asked to stop. Then all ranks stop."""
    ranks = run.engine.ranks
    return ranks is not None and ranks.any(stopping.asked is not None)


def end_together(ranks: Ranks) -> NoReturn:
    """End all ranks at the same time, after saving. torchrun stops all ranks when one ends."""
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
    from fafed.training.loop import Diverged

    try:
        yield from run
    except Diverged as error:
        place.write("failure.txt", str(error))
        raise


class _Start(NamedTuple):
    """Where a run begins or resumes."""

    path: Path | None  # the checkpoint
    digests: tuple[str, ...]
    lines: Lines
    newer: list[Path]  # checkpoints that cannot be used


def _start(place: RunDir, experiment: Experiment) -> _Start:
    """The newest checkpoint that is undamaged, belongs to this run, and has all its records. Warns
    about each checkpoint that it skips. Refuses to start over if that would overwrite records."""
    from fafed.experiments import checkpoint

    lines, there = read(place._records), checkpoint.found(place.checkpoints)
    if lines.wrong:
        log.warning("%s, %s: it is damaged from there on", place._records, lines.wrong)
    causes = []
    for path in there:
        round = checkpoint.round_of(path)
        # old checkpoints have the fingerprint, which includes the number of rounds, not the digest
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
        if experiment.over_all_rounds:
            why += f". {_rounds_matter(experiment)}"
        raise FafedError(
            f"{place.path} cannot go on, because no checkpoint can be used: {why}. Restore the "
            "files from a backup, or set experiment.toml back if it was changed. To start again "
            f"with round 1: `fafed resume {place.path} --again`, which moves what is there aside"
        )
    if lines.there:  # killed before the first checkpoint
        place.set_aside()
    return _Start(None, (), read(place._records), [])


def _rounds_matter(experiment: Experiment) -> str:
    names = ", ".join(f"algorithm.{name}" for name in experiment.over_all_rounds)
    return (
        f"The schedule of {names} falls over all rounds of the run, so another number of rounds "
        "(now rounds is "
        f"{experiment.rounds}) changes rounds that are already made. Set rounds back, or start a "
        "new run whose schedule has over = the number of steps that it may have in the end "
        "(rounds times local_steps)"
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
