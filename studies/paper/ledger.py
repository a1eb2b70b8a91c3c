"""Jobs and their outcomes: one line of JSON per run in results/NAME.jsonl.

A line holds what tables and figures need: the evaluations, their costs, and the reason if the run
diverged.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from fafed import files
from fafed.core.records import Record
from fafed.errors import FafedError
from fafed.experiments.config import Experiment
from fafed.experiments.rundir import RunDir
from studies.paper.protocol import Protocol, Settings

MEASURED = (
    *("train_loss", "test_loss", "test_accuracy", "validation_loss", "validation_accuracy"),
    "adaptive_fraction",  # FAFED's: of coordinates with sqrt(v) > rho
)
COSTS = ("round", "gradients", "bytes")  # sums since the start, over all clients


@dataclass(frozen=True)
class Job:
    """One run: an experiment of the folder, an algorithm, and what is changed."""

    experiment: str
    algorithm: str
    settings: Settings
    seed: int
    rounds: int
    changes: Settings = field(default_factory=dict)  # dotted names -> values

    @property
    def key(self) -> str:
        return json.dumps(self.plain(), sort_keys=True)

    def plain(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "algorithm": self.algorithm,
            "settings": dict(self.settings),
            "seed": self.seed,
            "rounds": self.rounds,
            "changes": dict(self.changes),
        }

    def build(self, protocol: Protocol) -> Experiment:
        plain = protocol.experiment(self.experiment).with_algorithm(self.algorithm, **self.settings)
        content = plain.to_dict() | {"seed": self.seed, "rounds": self.rounds}
        for name, value in self.changes.items():
            table, _, key = name.rpartition(".")
            if table:
                content[table] = content[table] | {key: value}
            else:
                content[key] = value
        return Experiment.from_dict(content, self.experiment)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. Columns have one entry per evaluation, None if not measured."""

    job: Job
    columns: Mapping[str, Sequence[float | None]]
    seconds: float = 0.0  # spent in rounds, about
    failure: str | None = None  # why it diverged

    def series(self, name: str, axis: str = "round") -> list[tuple[float, float]]:
        """Pairs (cost, value) of all evaluations that have both; none if the first round failed."""
        pairs = zip(self.columns.get(axis, ()), self.columns.get(name, ()), strict=False)
        return [(x, y) for x, y in pairs if x is not None and y is not None]

    def end(self, name: str, tail: int) -> float:
        """Mean over the last evaluations; nan if the run diverged or did not measure it."""
        values = [y for _, y in self.series(name)][-tail:]
        return math.nan if self.failure or not values else sum(values) / len(values)

    def plain(self) -> dict[str, Any]:
        own = {"seconds": self.seconds, "failure": self.failure, "columns": dict(self.columns)}
        return self.job.plain() | own

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Outcome:
        names = ("experiment", "algorithm", "settings", "seed", "rounds", "changes")
        job = Job(**{name: content[name] for name in names})
        return cls(job, content["columns"], content["seconds"], content["failure"])


def compact_record(job: Job, place: RunDir) -> Outcome:
    """The compact record of a run that has ended.

    It keeps the evaluations, with the training loss of the server's model. A run without such
    evaluations keeps all its rounds, with the training loss that the clients reported.
    """
    records = place.records()
    kept = [r for r in records if r.train] or records
    rows = [
        r.flat()
        | {"bytes": r.bytes_up + r.bytes_down, "train_loss": r.train.get("loss", r.train_loss)}
        for r in kept
    ]
    columns = {name: [_short(row.get(name)) for row in rows] for name in (*COSTS, *MEASURED)}
    columns = {name: c for name, c in columns.items() if any(v is not None for v in c)}
    return Outcome(job, columns, round(_duration(records), 1), place.failure())


def _duration(records: Sequence[Record]) -> float:
    """Median time of a round times their number: one very slow round does not count."""
    ends = [0.0, *(r.seconds for r in records)]
    rounds = [end - begin for begin, end in pairwise(ends)]
    return len(rounds) * statistics.median(rounds) if rounds else 0.0


def _short(value: float | None) -> float | None:
    """The number to six digits; None for infinity and NaN, which JSON cannot hold."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


class Missing(Exception):
    """A decision needs runs that are not in the ledger."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(f"{len(jobs)} runs are missing")
        self.jobs = list(jobs)


class Ledger:
    """All outcomes, by job."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self.outcomes = {outcome.job.key: outcome for outcome in outcomes}
        self.asked: set[str] = set()  # keys of jobs that some decision needed

    def __contains__(self, job: Job) -> bool:
        return job.key in self.outcomes

    def need(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes of these jobs; raises Missing with the jobs that have none."""
        self.asked.update(job.key for job in jobs)
        if missing := [job for job in jobs if job not in self]:
            raise Missing(missing)
        return [self.outcomes[job.key] for job in jobs]

    def add(self, outcome: Outcome) -> None:
        self.outcomes[outcome.job.key] = outcome

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        lines = (
            (file, number, line)
            for file in sorted(folder.glob("*.jsonl"))
            for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1)
        )
        return cls(_outcome(*line) for line in lines)

    def write(self, folder: Path) -> None:
        """Write one file per experiment, atomically, with lines sorted by key.

        Files of experiments that have no records any more are deleted.
        """
        folder.mkdir(parents=True, exist_ok=True)
        names = {outcome.job.experiment for outcome in self.outcomes.values()}
        for name in sorted(names):
            mine = sorted(key for key, o in self.outcomes.items() if o.job.experiment == name)
            text = "".join(json.dumps(self.outcomes[key].plain()) + "\n" for key in mine)
            files.write(folder / f"{name}.jsonl", [text.encode()])
        for file in folder.glob("*.jsonl"):
            if file.stem not in names:
                file.unlink()


def _outcome(file: Path, number: int, line: str) -> Outcome:
    try:
        return Outcome.from_dict(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        raise FafedError(
            f"{file}, line {number} is not a record of a run: {error!r}. Restore the file, or "
            "delete the line and run `python -m studies.paper run` again"
        ) from error
