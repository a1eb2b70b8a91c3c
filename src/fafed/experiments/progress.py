"""Progress of runs: a bar in a terminal, a line in a notebook, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fafed.core.records import Record
from fafed.engines.base import Engine
from fafed.errors import FafedError
from fafed.experiments.rundir import RunDir
from fafed.privacy.options import Privacy

PAUSE = 0.2  # seconds between two updates of a notebook


def facts(record: Record | None, privacy: Privacy | None = None) -> str:
    """A record in a few words."""
    if record is None:
        return "starting"
    parts = []
    if record.train_loss is not None:
        parts.append(f"train loss {record.train_loss:.4f}")
    if "loss" in record.train:
        parts.append(f"server train loss {record.train['loss']:.4f}")
    if "accuracy" in record.test:
        parts.append(f"accuracy {record.test['accuracy']:.4f}")
    elif "loss" in record.test:
        parts.append(f"test loss {record.test['loss']:.4f}")
    if "epsilon" in record.diagnostics:
        parts.append(f"epsilon {record.diagnostics['epsilon']:.2f}{_promised(privacy)}")
    if record.seconds:
        parts.append(f"{record.round / record.seconds:.2f} rounds/s")
    return "  ".join(parts)


def computed_by(engine: Engine) -> str:
    """Which back end runs, and why."""
    return f"engine {engine.name}: {engine.why}"


def _promised(privacy: Privacy | None) -> str:
    if privacy is None or privacy.level is None:
        return ""
    most = "" if privacy.max_epsilon is None else f" of {privacy.max_epsilon:.2f}"
    return f"{most} at delta {privacy.delta:g} (worst client)"


class Display:
    """Progress of one or more runs, as a context manager."""

    def __init__(self, *, quiet: bool = False, lines: bool = True) -> None:
        """lines: without a terminal or a notebook, write plain lines."""
        self.console = Console(stderr=True)
        self.notebook = self.console.is_jupyter and not quiet
        self.live = self.console.is_terminal and not quiet
        self.quiet = quiet or not (lines or self.live or self.notebook)
        self.cells: dict[str, Any] = {}  # lines in a notebook
        self.tasks: dict[str, Any] = {}
        self.seen: dict[str, int] = {}
        self.last: dict[str, Record] = {}
        self.shown = 0.0
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=self.console,
        )

    def __enter__(self) -> Self:
        if self.live:
            self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live:
            self.bars.stop()

    def say(self, line: str) -> None:
        """A line of its own, which stays."""
        if self.quiet:
            return
        if self.live:
            self.console.print(line, style="dim", highlight=False, markup=False)
        elif self.notebook:
            display: Any = importlib.import_module("IPython.display").display
            display({"text/plain": line}, raw=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def update(
        self, name: str, rounds: int, record: Record | None, privacy: Privacy | None = None
    ) -> None:
        """Show how far a run is. privacy: what it promises."""
        if self.quiet:
            return
        known = self._with_last_test(name, record)
        if self.live:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=rounds, facts="")
            done = record.round if record else 0
            self.bars.update(self.tasks[name], completed=done, facts=facts(known, privacy))
        elif self.notebook:
            self._in_notebook(name, rounds, record, facts(known, privacy))
        elif record and record.round != self.seen.get(name):
            self.seen[name] = record.round
            if record.test or record.round == rounds or record.round % max(1, rounds // 10) == 0:
                print(
                    f"{name}  round {record.round}/{rounds}  {facts(known, privacy)}",
                    file=sys.stderr,
                    flush=True,
                )

    def _in_notebook(self, name: str, rounds: int, record: Record | None, told: str) -> None:
        """A line that is replaced as the run goes on. (rich would need ipywidgets for it.)"""
        display: Any = importlib.import_module("IPython.display").display

        done, now = record.round if record else 0, time.monotonic()
        if done not in (0, rounds) and now - self.shown < PAUSE:
            return
        self.shown = now
        filled = 24 * done // rounds
        bar = "━" * filled + "╌" * (24 - filled)
        line = {"text/plain": f"{name}  {bar}  {done}/{rounds}  {told}"}
        if name in self.cells:
            self.cells[name].update(line, raw=True)
        else:
            self.cells[name] = display(line, raw=True, display_id=True)

    def _with_last_test(self, name: str, record: Record | None) -> Record | None:
        """Between evaluations a bar keeps showing the last one. A line does not."""
        if record is None or record.test or not (self.live or self.notebook):
            if record is not None:
                self.last[name] = record
            return record
        before = self.last.get(name)
        return Record(**{**record.to_dict(), "test": before.test if before else {}})

    def tick(self, places: Sequence[RunDir]) -> None:
        """Update the progress of runs in other processes."""
        for place in places:
            with contextlib.suppress(FafedError):  # the process that runs it reports damage
                if place.exists and (last := place.last()):
                    found = place.experiment()
                    self.update(place.path.name, found.rounds, last, found.privacy_options())
