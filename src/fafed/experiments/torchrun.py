"""One experiment on the ranks that torchrun has started.

Rank 0 reads, writes, evaluates and prints, in an ordinary run directory. The other ranks compute
the clients that they host. The two functions below exchange messages in the same order.
"""

from __future__ import annotations

import logging
from typing import TypedDict

from fafed.core.records import Record
from fafed.engines.ranks import Ranks
from fafed.experiments import checkpoint
from fafed.experiments.assemble import Prepared, prepare
from fafed.experiments.config import Experiment
from fafed.experiments.execute import OnRecord, execute, rounds
from fafed.experiments.folder import due
from fafed.experiments.rundir import RunDir
from fafed.experiments.stopping import Stopping
from fafed.files import Json
from fafed.training.loop import Run


class Plan(TypedDict):
    """What rank 0 tells the others."""

    experiment: dict[str, Json]
    engine: str | None
    workers: int | None
    cure: str


def lead(
    experiment: Experiment,
    place: RunDir,
    on_record: OnRecord,
    ranks: Ranks,
    workers: int | None = None,
    *,
    again: bool = False,
) -> None:
    """Rank 0: run the experiment in its directory."""

    def prepared(experiment: Experiment, engine: str | None) -> Prepared:
        ranks.cure = (
            f"The last checkpoint is safe: `fafed resume {place.path}`, under torchrun with any "
            "number of ranks or without it, goes on from there"
        )
        content, cure = experiment.to_dict(), ranks.cure
        plan: Plan = {"experiment": content, "engine": engine, "workers": workers, "cure": cure}
        ranks.tell(plan)
        return prepare(experiment, engine, ranks, workers=workers or ranks.workers())

    execute(experiment, place, on_record, prepared, again=again)


def take_part(ranks: Ranks) -> None:
    """Any other rank: compute until the run is finished or stopped."""
    logging.getLogger("fafed").setLevel(logging.ERROR)  # rank 0 warns
    plan: Plan | None = ranks.tell()
    if plan is None:  # there is nothing to do
        return
    experiment, ranks.cure = Experiment.from_dict(plan["experiment"]), plan["cure"]
    workers = plan["workers"] or ranks.workers()
    run = prepare(experiment, plan["engine"], ranks, workers=workers).run
    checkpoint.share(run)
    with Stopping() as stopping:
        for _ in rounds(run, _HandOver(experiment), stopping):
            pass


class _HandOver:
    """Sends the states of this rank's clients to rank 0 whenever rank 0 saves."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def keep(self, run: Run, record: Record, *, leave: bool) -> None:
        if leave or due(record.round, self.experiment, run):
            run.engine.hand_over()

    def end(self, run: Run, error: BaseException, *, whole: bool) -> None:
        """Rank 0 has saved what can be saved."""
