"""Decisions, such as the number of rounds or the best setting, from the records of runs.

Every method returns a decision, or raises Missing with the jobs that it still needs. Nothing here
runs anything.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np

from fafed.experiments.tuning import space
from studies.paper.ledger import Job, Ledger, Missing, Outcome
from studies.paper.protocol import Deviation, Protocol, Rung, Search, Settings

Decide = TypeVar("Decide", bound=Callable[..., Any])
Grid = Mapping[str, Sequence[Any]]  # hyper-parameter -> values


@dataclass(frozen=True)
class RoundBudget:
    """The number of rounds for all methods, and whether FedAvg reached the paper's accuracy."""

    count: int
    reached: bool


@dataclass(frozen=True)
class Race:
    """A search by successive halving: the trials of each rung, best first, and the winner.

    A trial with several seeds is represented by the run of its first seed.
    """

    rungs: list[list[Outcome]]
    winner: Outcome


def cached(decide: Decide) -> Decide:
    """Keep a decision until the ledger grows, because decisions build on each other."""

    @functools.wraps(decide)
    def found(decisions: Decisions, *about: str) -> Any:
        if decisions.made_from != len(decisions.ledger.outcomes):
            decisions.made_from, decisions.made = len(decisions.ledger.outcomes), {}
        known, key = decisions.made, (decide.__name__, *about)
        if key not in known:
            known[key] = decide(decisions, *about)
        return known[key]

    return cast(Decide, found)


class Decisions:
    def __init__(self, protocol: Protocol, ledger: Ledger) -> None:
        self.protocol = protocol
        self.ledger = ledger
        self.made_from = 0  # outcomes in the ledger when the decisions were made
        self.made: dict[Any, Any] = {}

    # Table 2.

    @cached
    def budget(self, name: str) -> RoundBudget:
        """The first evaluation at which FedAvg, with any step size, reaches the paper's accuracy.

        Step sizes are run in turn. None is run for longer than the fastest one so far took.
        """
        p = self.protocol
        target = p.reported(name)[p.budget.algorithm]
        bound, reached = p.budget.rounds, False
        grid = self.grid(name, p.budget.algorithm)
        for settings in sorted(points(grid), key=lambda s: -s["eta"]):
            job = Job(name, p.budget.algorithm, settings, p.choosing_seed, bound)
            (outcome,) = self.ledger.need([job])
            crossing = first_round_at(outcome, "test_accuracy", p.tail, target)
            if crossing is not None:
                bound, reached = crossing, True
        return RoundBudget(bound, reached)

    @cached
    def fair(self, name: str, algorithm: str) -> Race:
        """The search on the paper's grid, with the same limit of trials for all methods."""
        search = self.protocol.fair
        grid = points(self.grid(name, algorithm))
        return self.race(name, algorithm, subset(grid, search.trials), search)

    def grid(self, name: str, algorithm: str) -> Grid:
        return space(self.protocol.experiment(name), algorithm)

    def final(self, name: str, algorithm: str, seed: int) -> Outcome:
        return self._measured(name, self.fair(name, algorithm).winner.job, seed)

    def long(self, name: str, algorithm: str, seed: int) -> Outcome:
        job = self.fair(name, algorithm).winner.job
        return self._measured(name, job, seed, self.protocol.long.times)

    # Beyond the paper's grid.

    @cached
    def tuned(self, name: str, algorithm: str) -> Race:
        search = self.protocol.tuned
        grid = points(self.tuned_grid(name, algorithm))
        return self.race(name, algorithm, subset(grid, search.trials), search)

    def tuned_grid(self, name: str, algorithm: str) -> Grid:
        search = self.protocol.tuned
        best = self.fair(name, algorithm).winner.job.settings
        return {"eta": multiples(best["eta"], search.eta_times)} | search.grids[algorithm]

    def tuned_final(self, name: str, algorithm: str, seed: int) -> Outcome:
        return self._measured(name, self.tuned(name, algorithm).winner.job, seed)

    def tuned_also(self, name: str, algorithm: str, seed: int) -> Outcome:
        chosen = self.tuned(name, algorithm).winner.job
        settings = {**chosen.settings, **self.protocol.tuned.also[algorithm]}
        return self._measured(name, replace(chosen, settings=settings), seed)

    @cached
    def momentum(self, name: str, algorithm: str) -> Race:
        """The search with momentum.

        Candidates are the settings that the two searches chose, with momentum added, and the
        setting of the further search without it. A method that has momentum of its own keeps that.
        """
        without, grids = self.tuned(name, algorithm), self.momentum_grids(name, algorithm)
        candidates = [without.winner.job.settings]
        for grid in grids:
            candidates += [point for point in points(grid) if point not in candidates]
        return self.race(name, algorithm, candidates, self.protocol.tuned) if grids else without

    def momentum_grids(self, name: str, algorithm: str) -> list[Grid]:
        """One grid for each kind of momentum and each of the two settings to which it is added."""
        fair, further = self.fair(name, algorithm).winner, self.tuned(name, algorithm).winner
        kinds = [kind for kind in self.protocol.momentum if algorithm in kind.methods]
        return [
            {key: [value] for key, value in base.items()}
            | {"eta": multiples(base["eta"], kind.eta_times)}
            | kind.grid
            for base in (fair.job.settings, further.job.settings)
            for kind in kinds
        ]

    def momentum_grid(self, name: str, algorithm: str) -> Grid:
        """The grid that holds the chosen setting; empty if the choice has no momentum."""
        chosen = self.momentum(name, algorithm).winner.job.settings
        grids = self.momentum_grids(name, algorithm)
        return next((grid for grid in grids if chosen in points(grid)), {})

    def momentum_final(self, name: str, algorithm: str, seed: int) -> Outcome:
        return self._measured(name, self.momentum(name, algorithm).winner.job, seed)

    def momentum_long(self, name: str, algorithm: str, seed: int) -> Outcome:
        job = self.momentum(name, algorithm).winner.job
        return self._measured(name, job, seed, self.protocol.long.times)

    # FAFED's setting with one thing changed.

    def sensitivity(self, what: str, value: Any) -> Outcome:
        wanted = self.protocol.sensitivity
        settings = dict(self.fair(wanted.experiment, wanted.algorithm).winner.job.settings)
        rounds = self.share(wanted.experiment, wanted.share)
        table, _, key = what.rpartition(".")
        changes = {} if table == "algorithm" else {what: value}
        if table == "algorithm":
            settings[key] = value
        job = Job(wanted.experiment, wanted.algorithm, settings, wanted.seed, rounds, changes)
        return self.one(job)

    def deviation(self, wanted: Deviation, algorithm: str) -> Outcome:
        """The run with one thing changed, with the first measuring seed: see `final` beside it."""
        settings = self.fair(wanted.experiment, algorithm).winner.job.settings
        settings = {**settings, **wanted.settings}
        rounds, seed = self.rounds(wanted.experiment), self.protocol.seeds[0]
        return self.one(Job(wanted.experiment, algorithm, settings, seed, rounds, wanted.changes))

    # Data other than Fashion-MNIST.

    def curve(self, name: str, algorithm: str) -> Outcome:
        """The run with the best setting of the last rung that does not diverge.

        A setting can diverge here although its trial did not, because trials are much shorter.
        """
        curves, where = self.protocol.curves, self.protocol.chosen_at(name)
        grid = points(self.grid(where, algorithm))
        race = self.race(where, algorithm, subset(grid, curves.trials), curves)
        for trial in race.rungs[-1]:
            settings = trial.job.settings
            found = self.one(Job(name, algorithm, settings, curves.seed, curves.rounds))
            if not found.failure:
                break
        return found

    # Used by the methods above.

    def race(
        self,
        name: str,
        algorithm: str,
        candidates: Sequence[Settings],
        search: Search,
        rounds: int | None = None,
    ) -> Race:
        """The search among these settings; `rounds` is the length of a share of 1."""
        rounds = rounds or self.rounds(name)
        rungs: list[list[Outcome]] = []
        for rung in search.rungs:
            seeds = [self.protocol.choosing_seed, *rung.more_seeds]
            jobs = [
                self._trial(name, algorithm, settings, rung, seed, rounds)
                for settings in candidates
                for seed in seeds
            ]
            outcomes = self.ledger.need(jobs)
            trials = [outcomes[i : i + len(seeds)] for i in range(0, len(jobs), len(seeds))]
            trials.sort(key=lambda trial: -sum(score(o, rung.tail) for o in trial))
            rungs.append([trial[0] for trial in trials])
            candidates = [outcome.job.settings for outcome in rungs[-1][: rung.keep]]
        return Race(rungs, rungs[-1][0])

    def _trial(
        self, name: str, algorithm: str, settings: Settings, rung: Rung, seed: int, of: int
    ) -> Job:
        rounds = self.share_of(rung.share, of)
        changes: dict[str, Any] = {}
        if not self.protocol.is_text(name):  # a text has held-out data of its own
            changes["data.validation"] = self.protocol.validation
        if rung.tail == 1:
            changes["eval_every"] = rounds
        return Job(name, algorithm, settings, seed, rounds, changes)

    def _measured(self, name: str, chosen: Job, seed: int, times: int = 1) -> Outcome:
        rounds = times * self.rounds(name)
        return self.one(Job(name, chosen.algorithm, chosen.settings, seed, rounds))

    def one(self, job: Job) -> Outcome:
        (outcome,) = self.ledger.need([job])
        return outcome

    def rounds(self, name: str) -> int:
        other = name in self.protocol.other_data
        return self.protocol.curves.rounds if other else self.budget(name).count

    def share(self, name: str, share: float) -> int:
        return self.share_of(share, self.rounds(name))

    def share_of(self, share: float, rounds: int) -> int:
        return max(self.protocol.fewest_rounds, round(share * rounds))


def multiples(value: float, times: Sequence[float]) -> list[float]:
    """The value times each factor, to three digits."""
    return [float(f"{value * factor:.3g}") for factor in times]


def points(grid: Grid) -> list[Settings]:
    """Every combination of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def subset(grid: Sequence[Settings], most: int) -> list[Settings]:
    """At most this many points, drawn at random if there are more.

    The draw is the same every time. It covers the step sizes evenly, so that no method loses
    because its good step sizes were not drawn.
    """
    if len(grid) <= most:
        return list(grid)
    random = np.random.default_rng(0)
    groups: dict[str, list[Settings]] = {}
    for i in random.permutation(len(grid)):
        steps = repr([value for key, value in grid[i].items() if key.startswith("eta")])
        groups.setdefault(steps, []).append(grid[i])
    turns = itertools.zip_longest(*groups.values())
    chosen = [point for turn in turns for point in turn if point is not None][:most]
    return [point for point in grid if point in chosen]


def score(outcome: Outcome, tail: int) -> float:
    """What ranks a trial: validation accuracy at the end, for a text minus the validation loss;
    minus infinity if the run diverged."""
    value = outcome.end("validation_accuracy", tail)
    if math.isnan(value):
        value = -outcome.end("validation_loss", tail)
    return -math.inf if math.isnan(value) else value


def first_round_at(outcome: Outcome, name: str, tail: int, target: float) -> int | None:
    """The first round at which the mean of the last `tail` evaluations reaches the target."""
    series = outcome.series(name)
    for i in range(tail, len(series) + 1):
        if sum(value for _, value in series[i - tail : i]) / tail >= target:
            return int(series[i - 1][0])
    return None


def missing(calls: Iterable[Callable[[], object]]) -> list[Job]:
    """The jobs that these decisions still need, each once."""
    jobs: dict[str, Job] = {}
    for call in calls:
        try:
            call()
        except Missing as found:
            jobs |= {job.key: job for job in found.jobs}
    return list(jobs.values())
