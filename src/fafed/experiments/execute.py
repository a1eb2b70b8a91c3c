"""The executor: every run goes through it, in simulation, on ranks or over silos, with or without a
folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NoReturn, Protocol

from fafed.core.records import Record
from fafed.errors import ConfigError
from fafed.experiments.config import Experiment
from fafed.experiments.rundir import RunDir
from fafed.experiments.stopping import Stopping
from fafed.kernels import malloc

if TYPE_CHECKING:  # these imports load torch
    from fafed.engines.ranks import Ranks
    from fafed.experiments.assemble import Prepared
    from fafed.training.loop import Run

OnRecord = Callable[[Record], None]


class Keeper(Protocol):
    """Keeps what a run must not lose."""

    def keep(self, run: Run, record: Record, *, leave: bool) -> None:
        """A round is finished. `leave`: it is the last one for now."""

    def end(self, run: Run, error: BaseException, *, whole: bool) -> None:
        """The loop ends early. `whole`: the state is that of the last finished round."""


def rounds(run: Run, keeper: Keeper, stopping: Stopping) -> Generator[Record]:
    """Make round after round. Finished rounds are kept, whatever ends the loop."""
    ranks = run.engine.ranks
    # rank 0 saves after the round, and needs the others for it
    stopping.at_once = lambda: run.underway and (ranks is None or ranks.rank == 0)
    try:
        for record in run:
            stopping.saving = True
            # on several ranks: if any was asked to stop, all of them stop
            leave = ranks is not None and ranks.any(stopping.asked is not None)
            keeper.keep(run, record, leave=leave)
            stopping.saving = False
            yield record
            if ranks is None:
                stopping.check()
            elif leave:
                _end_together(ranks)
    except BaseException as error:
        stopping.saving = True
        # the other ranks have a part of the state
        keeper.end(run, error, whole=ranks is None and not stopping.abrupt)
        raise


def _end_together(ranks: Ranks) -> NoReturn:
    """End all ranks at the same time, after saving. torchrun stops all ranks when one ends."""
    ranks.any(True)
    raise KeyboardInterrupt


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
    from fafed.experiments import assemble
    from fafed.experiments.folder import Folder

    if experiment.python:
        raise ConfigError(
            f"{place.path} was begun by Python code, which has its model and data: run the script "
            "again, and fafed.start or fafed.train with the same folder goes on"
        )
    malloc.keep_freed_memory()
    with place.locked(), Stopping() as stopping:
        folder = Folder(place, experiment, again=again, lag=lag)
        prepared = (prepare or assemble.prepare)(experiment, folder.engine)
        folder.resume(prepared)
        loop = rounds(prepared.run, folder, stopping)
        with folder.writing(), contextlib.closing(loop):
            for record in loop:
                if on_record:
                    on_record(record)
