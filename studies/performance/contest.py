"""One job with all contenders. They take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from studies.performance import jobs, measure
from studies.performance.contenders import OURS, TRUTH, Contender
from studies.performance.environments import NotInstalled
from studies.performance.jobs import Job
from studies.performance.measure import Answer, Failed, TooSlow

# The largest accepted difference of final vectors, as a share of the distance from the first to the
# last vector. Rounding alone gives 1e-7 to 1e-5. It gives more on J4 with random images, where tiny
# differences switch ReLU and pooling: there float32 differs from float64 as much as the contenders
# differ from each other.
TOLERANCE = 1e-2
ROUNDING = 4e-6  # a difference below this share of the vector is accepted, too: float32 means
LONGEST = 300.0  # seconds after which a start is stopped, unless the budget is larger

Cell = dict[str, Any]


@dataclass
class Notes:
    """What is known of one contender so far."""

    answers: list[Answer] = field(default_factory=list)
    x: Any = None
    left_out: str | None = None  # on purpose, or because it took too long
    failed: str | None = None
    spent: float = 0.0

    @property
    def seconds(self) -> float:
        """Median over the repetitions of the median over a repetition's rounds."""
        return float(statistics.median(statistics.median(a.found["seconds"]) for a in self.answers))


def compete(
    job: Job, contenders: Sequence[Contender], *, rounds: int, repeat: int, budget: float
) -> dict[str, Cell]:
    """`budget`: a contender that has used this many seconds is not started again."""
    notes = {c.name: Notes(left_out=c.left_out.get(job.name)) for c in contenders}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        folder = Path(temporary)
        written = jobs.write(job, folder / "task", rounds)
        for repetition in range(repeat):
            for contender in contenders if repetition % 2 == 0 else reversed(contenders):
                note = notes[contender.name]
                last = note.answers[-1].wall if note.answers else 0.0
                if note.left_out or note.failed or (last and note.spent + last > budget):
                    continue
                answer = folder / contender.name / str(repetition)
                answer.mkdir(parents=True)
                try:
                    _start(contender, written.folder, answer, note, max(LONGEST, budget))
                except (TooSlow, NotInstalled) as cause:
                    note.left_out = str(cause)
                except Failed as cause:
                    note.failed = str(cause)
                _tell(job, contender, note)
        x0 = np.load(written.folder / "x0.npy")
    return _cells(job, contenders, notes, x0, written.origin)


def _start(contender: Contender, task: Path, answer: Path, note: Notes, limit: float) -> None:
    found = measure.run(
        contender.command(task, answer), contender.environment_variables(), answer, limit=limit
    )
    note.answers.append(found)
    note.spent += found.wall
    note.x = np.load(answer / "x.npy")


def _cells(
    job: Job, contenders: Sequence[Contender], notes: dict[str, Notes], x0: Any, origin: str
) -> dict[str, Cell]:
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    ours = notes[OURS].seconds if OURS in notes and notes[OURS].answers else None
    truth = next((notes[n].x for n in (TRUTH, OURS) if n in notes and notes[n].answers), None)
    cells: dict[str, Cell] = {}
    for contender in contenders:
        note = notes[contender.name]
        cell: Cell = {"label": contender.label, "algorithm": contender.algorithm, "date": date}
        if note.answers:
            cell |= {
                "seconds": note.seconds,
                "rounds": [a.found["seconds"] for a in note.answers],
                "ours": ours,  # measured in the same minutes
                "startup": statistics.median(a.found["startup"] for a in note.answers),
                "memory": max((a.memory for a in note.answers if a.memory), default=None),
                "data": origin,
            }
            cell |= {k: v for k, v in note.answers[-1].found.items() if k == "engine"}
            if contender.comparable and truth is not None:
                way, size = (float(np.linalg.norm(v)) for v in (truth - x0, truth))
                off = float(np.linalg.norm(note.x - truth))
                cell["deviation"] = off / way
                cell["equal"] = off <= max(TOLERANCE * way, ROUNDING * size)
        else:
            cell["left_out"] = note.left_out or "it failed"
        if note.failed:
            cell["failed"] = note.failed
        cells[contender.name] = cell
    return cells


def _tell(job: Job, contender: Contender, note: Notes) -> None:
    news = note.left_out or note.failed
    if not news:
        latest = note.answers[-1]
        news = ", ".join(f"{s:.3g}" for s in latest.found["seconds"]) + " s a round"
        news += f"; {latest.wall:.0f} s in all"
    print(f"{job.name} {contender.name:>13}: {news}", flush=True)
