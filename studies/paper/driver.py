"""Runs what is missing, stage by stage, and keeps the ledger up to date.

It can be stopped at any moment: finished runs are in the ledger, and a run that was cut short
continues from its checkpoint. The driver's ledger lies beside the runs. `python -m studies.paper
document` copies it into results/ when it writes the page, so that the two never differ.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fafed.data import status
from fafed.errors import ConfigError, nearest
from fafed.experiments.grid import run_all
from fafed.experiments.rundir import RunDir
from studies.paper import decay, text
from studies.paper.decisions import Decisions, missing
from studies.paper.findings import level
from studies.paper.ledger import Job, Ledger, Outcome, compact_record
from studies.paper.protocol import Protocol

Calls = list[Callable[[], object]]
Say = Callable[[str], None]
RECORDS = "records"  # the driver's ledger, below the runs
PAUSE = 10.0  # seconds between two looks at what has ended


def stages(decisions: Decisions) -> dict[str, Calls]:
    """Name -> the decisions to be made, in the order in which they are run."""
    p = decisions.protocol
    levels, methods, values = list(p.table2), p.methods, p.sensitivity.values

    def seeds(decide: Callable[[str, str, int], object], chosen: Sequence[int]) -> Calls:
        return [partial(decide, n, m, seed) for seed in chosen for n in levels for m in methods]

    found: dict[str, Calls] = {
        "budget": [partial(decisions.budget, n) for n in [*levels, *p.readings]]
    }
    for name in [*levels, *p.readings]:  # each is a whole column of Table 2
        found[name] = [partial(decisions.final, name, m, seed) for seed in p.seeds for m in methods]
    also = [(n, m, seed) for n in levels for m in p.tuned.also for seed in p.seeds]
    found |= {
        "tuned": [
            *seeds(decisions.tuned_final, p.seeds),
            *(partial(decisions.tuned_also, *which) for which in also),
        ],
        "momentum": seeds(decisions.momentum_final, p.seeds),
        "long": seeds(decisions.long, p.seeds[:1]),
        "sensitivity": [partial(decisions.sensitivity, k, v) for k in values for v in values[k]],
        "deviations": [partial(decisions.deviation, d, m) for d in p.deviations for m in d.methods],
    }
    for name in levels:
        found[f"decay-{level(name)}"] = [
            partial(decay.measured, decisions, name, *which) for which in decay.calls_of(decisions)
        ]
    for name in p.other_data:
        found[name] = [partial(decisions.curve, name, m) for m in methods]
    found["long-seeds"] = seeds(decisions.long, p.seeds[1:])
    found["momentum-long"] = seeds(decisions.momentum_long, p.seeds)
    for name in (name for names in p.again.data.values() for name in names):
        found[f"{name}-again"] = [
            partial(text.again, decisions, name, m, seed) for seed in p.again.seeds for m in methods
        ]
    found["text"] = [
        call
        for seed in p.text.seeds
        for call in (
            *(partial(text.final, decisions, m, seed) for m in p.text.methods),
            partial(text.control, decisions, seed),
        )
    ]
    found["text-check"] = [partial(text.checked, decisions, m) for m in p.text.methods]
    found["first-rounds"] = [
        partial(text.first_rounds, decisions, case) for case in p.first_rounds.cases
    ]
    for name, wanted in p.language.items():  # last, because it takes longer than all the others
        found[name] = [partial(text.large, decisions, name, m) for m in wanted.methods]
        if wanted.control:
            found[name].append(partial(text.large_control, decisions, name))
    return found


def all_records(root: Path, results: Path) -> Ledger:
    """The committed records, and those of the runs made since then."""
    ledger = Ledger.read(results)
    ledger.outcomes |= Ledger.read(root / RECORDS).outcomes
    return ledger


def needed_records(decisions: Decisions) -> Ledger:
    """The records that the decisions refer to, without runs of an earlier protocol."""
    for calls in stages(decisions).values():
        missing(calls)
    found = decisions.ledger
    return Ledger(found.outcomes[key] for key in found.outcomes if key in found.asked)


def chosen_stages(decisions: Decisions, only: Sequence[str]) -> dict[str, Calls]:
    known = stages(decisions)
    for name in only:
        if name not in known:
            raise ConfigError(f"there is no stage {name!r}; {nearest(name, known)}")
    wanted = only or [name for name in known if name not in decisions.protocol.on_request]
    return {name: known[name] for name in known if name in wanted}


def run(
    protocol: Protocol,
    root: Path,
    results: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = 1,
    workers: int | None = None,
    say: Say = print,
) -> None:
    """Run everything that is missing, stage by stage: later stages use earlier decisions."""
    ledger = all_records(root, results)
    decisions = Decisions(protocol, ledger)
    for name, calls in chosen_stages(decisions, only).items():
        while todo := missing(calls):
            if absent := _absent(protocol, todo):
                say(f"{name}: left out, {absent} is not here: fafed data get {absent}")
                break
            say(f"{name}: {len(todo)} runs, {sum(job.rounds for job in todo)} rounds")
            batch = Batch(protocol, ledger, todo, root, say)
            try:
                run_all(batch.experiments, root, jobs, batch.look, threads=workers)
            finally:
                batch.collect()
        else:
            say(f"{name}: done")


def _absent(protocol: Protocol, jobs: Sequence[Job]) -> str | None:
    """The name of a dataset that these runs need and that is not on this machine."""
    wanted = {protocol.experiment(job.experiment).data.name for job in jobs}
    return next((item.name for item in status() if item.name in wanted and not item.present), None)


class Batch:
    """Runs that are made together.

    Two jobs can be the same run: a job may "change" a setting to the value that it already had.
    """

    def __init__(
        self, protocol: Protocol, ledger: Ledger, jobs: Sequence[Job], root: Path, say: Say
    ) -> None:
        self.ledger, self.records, self.say = ledger, root / RECORDS, say
        self.looked = time.monotonic()
        self.open: dict[Path, list[Job]] = {}
        self.experiments = []
        for job in jobs:
            experiment = job.build(protocol)
            path = RunDir.for_experiment(experiment, root).path
            if path not in self.open:
                self.experiments.append(experiment)
            self.open.setdefault(path, []).append(job)

    def look(self, under_way: Sequence[RunDir]) -> None:
        """Collect finished runs every few seconds, so that a stop loses none of them."""
        if time.monotonic() - self.looked > PAUSE:
            self.collect(under_way)
            self.looked = time.monotonic()

    def collect(self, under_way: Sequence[RunDir] = ()) -> None:
        """Put finished runs into the ledger and delete their checkpoints.

        A run under way is left alone even if its records are complete: it writes its last
        checkpoint after them.
        """
        busy = {place.path for place in under_way}
        ended = [RunDir(path) for path in self.open if path not in busy and _ended(RunDir(path))]
        for place in ended:
            for job in self.open.pop(place.path):
                self.ledger.add(outcome := compact_record(job, place))
                self.say(_line(job, outcome))
            shutil.rmtree(place.checkpoints, ignore_errors=True)
        if ended:
            self.ledger.write(self.records)


def _ended(place: RunDir) -> bool:
    return place.exists and (place.failure() is not None or place.finished())


def _line(job: Job, outcome: Outcome) -> str:
    settings = " ".join(f"{key}={value}" for key, value in {**job.settings, **job.changes}.items())
    words = f"{job.experiment} {job.algorithm} seed {job.seed} {settings}"
    measured = {name: outcome.end(f"test_{name}", 1) for name in ("accuracy", "loss")}
    shown = " ".join(f"{name} {value:.4f}" for name, value in measured.items() if value == value)
    end = f"{job.rounds} rounds, {outcome.seconds:.0f} s"
    return f"  {words}: {outcome.failure or shown} after {end}"
