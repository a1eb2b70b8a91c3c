"""Numbers for tables and figures, from the ledger. None stands for what has not been run yet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from fafed.algorithms import ALGORITHMS
from fafed.report.numbers import Stat
from studies.paper import decay, text
from studies.paper.decisions import Decisions, Race, RoundBudget
from studies.paper.ledger import Missing, Outcome
from studies.paper.protocol import Case, Deviation, Protocol

T = TypeVar("T")
Column = dict[str, Stat]  # method -> test accuracy
Races = Callable[[str, str], Race | None]  # of an experiment and a method
Runs = Callable[[str, str], list[Outcome]]
ACCURACY = "test_accuracy"
DATA = {"fashion-mnist": "Fashion-MNIST", "mnist": "MNIST", "cifar-10": "CIFAR-10"}
FAFED, FEDAVG, STEM = "fafed", "fedavg", "stem"
CONTROL = "STEM, step eta/rho"


def title(algorithm: str) -> str:
    return ALGORITHMS[algorithm].__name__


def level(name: str) -> str:
    """low, moderate or high."""
    return name.rpartition("-")[2]


def perplexity(loss: float) -> float:
    return math.exp(min(loss, 700))  # what a float can hold


def or_none(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except Missing:
        return None


@dataclass(frozen=True)
class Standing:
    """Where a method stands in a column of results."""

    rank: int  # 1 is first
    lead: float  # ahead of the best other, or negative
    rival: str
    spread: float  # the larger standard deviation of the two


class Findings:
    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self.levels = list(decisions.protocol.table2)

    @property
    def protocol(self) -> Protocol:
        return self.decisions.protocol

    # Decisions.

    def rounds(self, name: str) -> RoundBudget | None:
        return or_none(partial(self.decisions.budget, name))

    def setting(self, name: str, method: str) -> Race | None:
        return or_none(partial(self.decisions.fair, name, method))

    def tuned_setting(self, name: str, method: str) -> Race | None:
        return or_none(partial(self.decisions.tuned, name, method))

    def momentum_setting(self, name: str, method: str) -> Race | None:
        return or_none(partial(self.decisions.momentum, name, method))

    # Runs.

    def finals(self, name: str, method: str) -> list[Outcome]:
        return self._compared(partial(self.decisions.final, name), method)

    def longs(self, name: str, method: str) -> list[Outcome]:
        return self._compared(partial(self.decisions.long, name), method)

    def tuned(self, name: str, method: str) -> list[Outcome]:
        return self._compared(partial(self.decisions.tuned_final, name), method)

    def tuned_also(self, name: str, method: str) -> list[Outcome]:
        return self._seeds(partial(self.decisions.tuned_also, name, method))

    def with_momentum(self, name: str, method: str) -> list[Outcome]:
        """The runs of the further search, with momentum for the methods that have none."""
        return self._compared(partial(self.decisions.momentum_final, name), method)

    def momentum_longs(self, name: str, method: str) -> list[Outcome]:
        return self._compared(partial(self.decisions.momentum_long, name), method)

    def curves(self, name: str, method: str) -> list[Outcome]:
        """The runs for the figures: those of Table 2, or the single one on other data."""
        if name in self.levels:
            return self.finals(name, method)
        found = or_none(partial(self.decisions.curve, name, method))
        return [found] if found else []

    def language(self, name: str) -> dict[str, Outcome]:
        """Method -> run."""
        methods = self.protocol.language[name].methods
        found = {title(m): or_none(partial(text.large, self.decisions, name, m)) for m in methods}
        return {label: outcome for label, outcome in found.items() if outcome}

    def control(self, name: str) -> Outcome | None:
        """STEM with the step eta/rho, if the protocol asks for it."""
        wanted = self.protocol.language[name].control
        return or_none(partial(text.large_control, self.decisions, name)) if wanted else None

    def sensitivity(self) -> dict[str, list[tuple[float, Outcome]]]:
        """The setting that is changed -> its values, each with its run."""
        found = {}
        for what, values in self.protocol.sensitivity.values.items():
            runs = [(v, or_none(partial(self.decisions.sensitivity, what, v))) for v in values]
            found[what] = [(float(v), run) for v, run in runs if run]
        return found

    def deviation(self, wanted: Deviation, method: str) -> tuple[Outcome | None, Outcome | None]:
        """The run of Table 2, and the same run with one thing changed."""
        seed = self.protocol.seeds[0]
        plain = or_none(partial(self.decisions.final, wanted.experiment, method, seed))
        return plain, or_none(partial(self.decisions.deviation, wanted, method))

    def decayed(self, name: str, method: str, axis: str = "rounds") -> list[Outcome]:
        """With a falling step size; `axis` says what is equal: rounds, gradients or bytes."""
        p = self.protocol.decay

        def decide(method: str, seed: int) -> Outcome:
            return decay.measured(self.decisions, name, method, axis, seed)

        return self._compared(decide, method, p.methods, p.seeds)

    def decay_setting(self, name: str, method: str) -> Race | None:
        return or_none(partial(decay.chosen, self.decisions, name, method))

    def texts(self, method: str) -> list[Outcome]:
        """The runs of the short language model."""
        p = self.protocol.text
        return self._compared(partial(text.final, self.decisions), method, p.methods, p.seeds)

    def text_control(self) -> list[Outcome]:
        return self._seeds(partial(text.control, self.decisions), self.protocol.text.seeds)

    def text_setting(self, method: str) -> Race | None:
        return or_none(partial(text.chosen, self.decisions, method))

    def text_check(self, method: str) -> Race | None:
        return or_none(partial(text.checked, self.decisions, method))

    def first_rounds(self) -> list[tuple[Case, Outcome]]:
        cases = self.protocol.first_rounds.cases
        runs = [(c, or_none(partial(text.first_rounds, self.decisions, c))) for c in cases]
        return [(case, run) for case, run in runs if run]

    def again(self, name: str, method: str) -> list[Outcome]:
        """Curves on other data after a search at their own level."""
        seeds = self.protocol.again.seeds
        decide = partial(text.again, self.decisions, name)
        return self._compared(decide, method, self.protocol.methods, seeds)

    def _compared(
        self,
        decide: Callable[[str, int], Outcome],
        method: str,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[Outcome]:
        """A method's runs with the seeds that all methods have; all its runs if there is none."""
        methods = methods or self.protocol.methods
        by_method = {m: self._seeds(partial(decide, m), seeds) for m in methods}
        common = set.intersection(*({run.job.seed for run in runs} for runs in by_method.values()))
        return [run for run in by_method[method] if not common or run.job.seed in common]

    def _seeds(
        self, decide: Callable[[int], Outcome], seeds: Sequence[int] | None = None
    ) -> list[Outcome]:
        found = [or_none(partial(decide, seed)) for seed in seeds or self.protocol.seeds]
        return [outcome for outcome in found if outcome]

    # Numbers.

    def end(self, runs: Sequence[Outcome], tail: int | None = None) -> Stat | None:
        """Test accuracy at the end."""
        values = [run.end(ACCURACY, tail or self.protocol.tail) for run in runs]
        return Stat.from_values(values) if values else None

    def column(self, runs: Runs, name: str, tail: int | None = None) -> Column:
        found = {m: self.end(runs(name, m), tail) for m in self.protocol.methods}
        return {method: stat for method, stat in found.items() if stat}

    def columns(self, runs: Runs, tail: int | None = None) -> dict[str, Column]:
        """The columns of all levels."""
        return {name: self.column(runs, name, tail) for name in self.levels}

    def table2(self, name: str) -> Column:
        return self.column(self.finals, name)

    def complete(self, name: str) -> bool:
        """Whether every method has all its seeds."""
        found = self.table2(name)
        seeds = len(self.protocol.seeds)
        return len(found) == len(self.protocol.methods) and all(
            stat.n == seeds for stat in found.values()
        )

    def decay_column(self, name: str, axis: str = "rounds") -> Column:
        """With a falling step size, by the last evaluation."""
        methods = self.protocol.decay.methods
        found = {m: self.end(self.decayed(name, m, axis), 1) for m in methods}
        return {method: stat for method, stat in found.items() if stat}

    def text_column(self) -> Column:
        """The training loss at the end of the short language model."""
        return {m: end for m in self.protocol.text.methods if (end := self.loss(self.texts(m)))}

    def loss(self, runs: Sequence[Outcome]) -> Stat | None:
        """Training loss at the end."""
        values = [run.end("train_loss", self.protocol.tail) for run in runs]
        return Stat.from_values(values) if values else None

    def standing(
        self,
        column: Mapping[str, Stat],
        method: str = FAFED,
        *,
        among: Sequence[str] | None = None,
        lower: bool = False,
    ) -> Standing | None:
        """A method's standing; None unless all methods have the same number of seeds.

        `lower`: a lower number is better. A lead is positive all the same.
        """
        if lower:
            column = {m: Stat(-s.mean, s.std, s.n) for m, s in column.items()}
        others = {name: stat for name, stat in column.items() if name != method}
        same = len({stat.n for stat in column.values()}) == 1
        wanted = among or self.protocol.methods
        if method not in column or not same or len(column) < len(wanted):
            return None
        mine = column[method]
        rival = max(others, key=lambda name: _last_if_nan(others[name].mean))
        better = sum(stat.mean > mine.mean for stat in others.values())
        spread = max(mine.std or 0.0, others[rival].std or 0.0)
        return Standing(better + 1, mine.mean - others[rival].mean, rival, spread)

    def at_equal_cost(self, name: str, axis: str, runs: Runs | None = None) -> dict[str, Stat]:
        """Each method's accuracy at the point where it has spent as much as FedAvg's whole run.

        `axis` is "gradients" or "bytes". The runs are those of Table 2 unless others are given.
        """
        runs = runs or self.finals
        reference = runs(name, FEDAVG)
        if not reference:
            return {}
        limit = float(reference[0].columns[axis][-1] or 0)
        apart, tail = self.protocol.experiment(name).eval_every, self.protocol.tail
        found = {}
        for method in self.protocol.methods:
            values = [read_at(run, axis, limit, tail, apart) for run in runs(name, method)]
            if values:
                found[method] = Stat.from_values(values)
        return found

    def training(self, name: str) -> dict[str, tuple[float, float]]:
        """Method -> training loss at the end and the sum of its rises, means over seeds."""
        found = {}
        for method in self.protocol.methods:
            runs = self.curves(name, method)
            if runs and not any(run.failure for run in runs):
                ends = [run.end("train_loss", self.protocol.tail) for run in runs]
                ups = [rises(run) for run in runs]
                found[method] = math.fsum(ends) / len(runs), math.fsum(ups) / len(runs)
        return found

    def data_of(self, level_name: str) -> dict[str, str]:
        """Data -> experiment, at a level."""
        names = [*self.levels, *self.protocol.other_data]
        found = {n.rpartition("-")[0]: n for n in names if level(n) == level_name}
        return {DATA.get(data, data): name for data, name in found.items()}

    def costs(self, name: str, method: str) -> dict[str, float] | None:
        """What a run of Table 2 costs, relative to FedAvg's."""
        mine, reference = self.finals(name, method), self.finals(name, FEDAVG)
        if not mine or not reference:
            return None
        return {
            axis: float(mine[0].columns[axis][-1] or 0) / float(reference[0].columns[axis][-1] or 1)
            for axis in ("gradients", "bytes")
        }


def read_at(run: Outcome, axis: str, limit: float, tail: int, apart: int) -> float:
    """Accuracy of a run at the point where its cost reached the limit.

    It is a mean of `tail` readings that are `apart` rounds apart, as at the end of a run. Readings
    are interpolated between evaluations.
    """
    points = run.series(ACCURACY, axis)
    if run.failure or not points:
        return math.nan
    costs, accuracies = zip(*points, strict=True)
    rounds = [r for r, _ in run.series(ACCURACY)]
    end = float(np.interp(limit, costs, rounds))
    return float(np.mean(np.interp([end - k * apart for k in range(tail)], rounds, accuracies)))


def rises(run: Outcome, name: str = "train_loss") -> float:
    """The sum of all increases of a quantity from one evaluation to the next."""
    values = [y for _, y in run.series(name)]
    return math.fsum(max(0.0, b - a) for a, b in itertools.pairwise(values))


def _last_if_nan(value: float) -> float:
    return -math.inf if math.isnan(value) else value
