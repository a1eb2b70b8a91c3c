"""A run that its user holds: its loop, and what it has reached."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor, nn

from fafed.core.records import History, Record
from fafed.core.run_data import RunData
from fafed.errors import FafedError
from fafed.experiments import model_file, python_run
from fafed.experiments.assemble import Prepared
from fafed.experiments.config import Experiment
from fafed.experiments.execute import Keeper, OnRecord
from fafed.experiments.execute import rounds as rounds_of
from fafed.experiments.folder import Folder, Memory
from fafed.experiments.progress import Display, computed_by
from fafed.experiments.rundir import RunDir
from fafed.experiments.stopping import Stopping
from fafed.experiments.trackers import Tracker, open_tracker
from fafed.training.loop import Run


class Training:
    """A run that you hold. `for record in run` makes its rounds; a `break` leaves it, and another
    loop goes on. Between two rounds the folder, if there is one, has all that is finished. It is
    locked only while a loop runs."""

    def __init__(
        self,
        prepare: Callable[[str], Prepared],
        engine: str,
        memory: Memory,
        place: RunDir | None,
        describe: Callable[[], Experiment],
        tracks: Sequence[str],
        calls: Sequence[OnRecord],
        *,
        quiet: bool,
    ) -> None:
        self._memory, self._place, self._describe = memory, place, describe
        self._tracks, self._calls, self._quiet = tracks, calls, quiet
        self._loop: weakref.ref[Generator[Record]] | None = None
        self._stopping = Stopping()
        self._told = False  # which back end runs
        if place is None:
            self._prepared = prepare(engine)
            return
        with place.locked():
            python_run.check_same(place, self.experiment)
            self._folder = Folder(place, self.experiment, memory)
            self._prepared = prepare(self._folder.engine or engine)
            self._folder.resume(self._prepared)
            self._seen = place.stamp()

    @property
    def _run(self) -> Run:
        return self._prepared.run

    # What there is to see.

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The description of the run that its folder has, and that reports show."""
        return self._describe()

    def data(self, failure: str | None = None) -> RunData:
        """The run as a report takes it."""
        shards = self._prepared.shards
        return RunData(
            name=self._place.path.name if self._place else self.experiment.label,
            config=self.experiment.to_dict(),
            records=[record.to_dict() for record in self.history],
            counts=shards.counts,
            classes=shards.classes,
            finished=self.finished,
            failure=failure,
        )

    @property
    def history(self) -> History:
        """The records of all finished rounds."""
        return self._memory.history

    @property
    def x(self) -> Tensor:
        """The flat vector of the model that `output` chooses; by default the newest."""
        return self._memory.output.of(self._run.state)[0]

    @property
    def model(self) -> nn.Module:
        """The trained module in eval mode: a copy, made now."""
        return self._prepared.objective.predict(*self._memory.output.of(self._run.state))

    @property
    def engine(self) -> str:
        """The back end: "loop", "vmap" or "native"."""
        return self._run.engine.name

    @property
    def finished(self) -> bool:
        return self._run.state.round >= self._run.rounds

    @property
    def impatient(self) -> bool:
        """Whether Ctrl-C has come a second time in the last loop."""
        return self._stopping.times > 1

    def result(self) -> Result:
        """What is finished now, as a value that later rounds do not change."""
        return Result(
            self.model, self.x, History(self.history), self.engine, self.finished, repr(self)
        )

    def save(self, path: str | Path) -> None:
        """Write the model's state_dict as a file for `safetensors.torch.load_model`."""
        model_file.save(self.model, path)

    def __repr__(self) -> str:
        return (
            f"{type(self._run.algorithm).__name__}: round {self._run.state.round} of "
            f"{self._run.rounds} on {self.engine}"
            + "".join(f", {told}" for told in _last(self.history))
            + (f", in {self._place.path}" if self._place else "")
        )

    # The loop.

    def __iter__(self) -> Iterator[Record]:
        self.close()  # of two loops only one can go on
        loop = self._rounds()
        self._loop = weakref.ref(loop)  # a break drops the loop, which then ends at once
        return loop

    def _rounds(self) -> Generator[Record]:
        run = self._run
        keeper: Keeper = self._memory
        with contextlib.ExitStack() as stack:
            if self._place is not None:
                stack.enter_context(self._place.locked())
                self._catch_up()
                stack.callback(self._note)
                stack.enter_context(self._folder.writing())
                keeper = self._folder
            if self.finished:
                return
            shown = [stack.enter_context(contextlib.closing(one)) for one in self._trackers()]
            display = stack.enter_context(Display(quiet=self._quiet, lines=False))
            label = self._place.path.name if self._place else type(run.algorithm).__name__
            stopping = self._stopping = Stopping()
            loop = rounds_of(run, keeper, stopping)
            stack.callback(_close, loop)
            promise = self.experiment.privacy_options()
            if not self._told:
                display.say(computed_by(run.engine))
                self._told = True
            display.update(label, run.rounds, self.history[-1] if self.history else None, promise)
            while True:
                with stopping:  # not around the user's own code
                    record = next(loop, None)
                    if record is None:
                        return
                    display.update(label, run.rounds, record, promise)
                    for tracker in shown:
                        tracker.record(record)
                    for call in self._calls:
                        call(record)
                yield record

    def _trackers(self) -> Iterator[Tracker]:
        for spec in self._tracks:
            name = self._place.path.name if self._place else self.experiment.label
            begun = bool(self.history)
            yield open_tracker(spec, name, self.experiment.to_dict(), resumed=begun)

    def _catch_up(self) -> None:
        """Another process may have gone on with the run since this one left the folder."""
        folder, state = self._folder, self._run.state
        if self._seen == folder.place.stamp() and len(self.history) == state.round:
            return
        self._folder = Folder(folder.place, folder.experiment, self._memory)
        if state.round and self._folder.engine is None:
            raise FafedError(
                f"{folder.place.path} has lost the checkpoints of this run: restore them, or call "
                "fafed.start again to begin with round 1"
            )
        self._folder.resume(self._prepared)

    def _note(self) -> None:
        self._seen = self._folder.place.stamp()

    def close(self) -> None:
        """End a loop that is under way, and unlock the folder. Nothing is lost."""
        loop = self._loop() if self._loop else None
        if loop is not None:
            loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _last(history: Sequence[Record]) -> list[str]:
    """The newest test numbers in words."""
    return next((words for record in reversed(history) if (words := record.tested())), [])


def _close(loop: Generator[Record]) -> None:
    """End the executor's loop. No signal interrupts its saving."""
    with Stopping() as stopping:
        stopping.saving = True
        loop.close()


@dataclass(frozen=True, repr=False)
class Result:
    """What a training has reached."""

    model: nn.Module  # the trained copy, in eval mode; the module passed in is unchanged
    x: Tensor  # its flat vector
    history: History
    engine: str  # "loop", "vmap" or "native"
    finished: bool  # False: Ctrl-C came before the last round
    summary: str

    def __repr__(self) -> str:
        return self.summary
