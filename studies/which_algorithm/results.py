"""The results of the study, with the numbers and words that the page and the picture use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fafed.algorithms import ALGORITHMS
from fafed.core import tree
from fafed.report.algorithm_cards import Card, card
from fafed.report.numbers import Stat, listing
from studies.which_algorithm import jobs
from studies.which_algorithm.jobs import AS_IT_IS, CONSTANT_ONLY, ELSEWHERE, JOBS, ROOT

RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "which-algorithm.md"
NUMBERS = ROOT / "docs" / "which-algorithm-numbers.md"
PICTURE = ROOT / "docs" / "images" / "which-algorithm.svg"

SKEWED, ALIKE, PARTIAL = JOBS  # "alike" in the text is "iid" in the files
TITLES = {SKEWED: "skewed", ALIKE: "alike", PARTIAL: "partial"}
NEAR = 0.03  # of the best trial
EXPERIMENTAL = "fedkron"
NAIVE = "naive"  # it can move away from the optimum
NOT_ADVISED = (NAIVE, EXPERIMENTAL)


class Results:
    """The content of results.json."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.parts: dict[str, dict[str, Any]] = content["measured"]
        self.trials: dict[str, dict[str, Any]] = content["trials"]
        self.defaults: dict[str, dict[str, Any]] = content["defaults"]
        self.elsewhere = {job: content["elsewhere"].get(job, {}) for job in ELSEWHERE}
        self.pooled: dict[str, dict[str, Any]] = content["pooled"]

    @cached_property
    def cards(self) -> dict[str, Card]:
        return {name: card(name) for name in self.parts[SKEWED]}

    @property
    def not_measured(self) -> list[str]:
        """The algorithms of the library that this study has not run."""
        known = self.parts[SKEWED].keys() | self.pooled.keys()
        return [name for name in ALGORITHMS if name not in known]

    def advisable(self, fits: Callable[[Card], bool] = lambda card: True) -> list[str]:
        """The methods that fit, without `naive`, which can leave the optimum, and experiments."""
        return [n for n, card in self.cards.items() if n not in NOT_ADVISED and fits(card)]

    def accuracy(self, part: str, name: str) -> Stat:
        return stat(self.parts[part][name]["accuracy"])

    def mean(self, part: str, name: str) -> float:
        return self.accuracy(part, name).mean

    def equal(self, part: str, name: str, axis: str) -> float:
        """The accuracy at the cost of FedAvg's whole run with one seed, 0 if it diverged."""
        return float(self.parts[part][name]["equal"][axis]["accuracy"] or 0)

    def rounds(self, part: str, name: str, axis: str) -> int:
        """How many rounds cost what FedAvg's whole run costs."""
        return int(self.parts[part][name]["equal"][axis]["rounds"])

    def untuned(self, part: str, name: str) -> float:
        """The accuracy with the rule's setting, 0 if it diverged."""
        return float(self.parts[part][name]["untuned"] or 0)

    def of_pooled(self, name: str) -> Stat:
        return stat(self.pooled[name]["accuracy"])

    def asked_for(self, name: str) -> bool:
        """Whether the rule asks for another default than the one before."""
        return bool(self.parts[SKEWED][name]["default"] != self.defaults[name]["before"])

    @property
    def falling(self) -> list[str]:
        """The methods that were given a step size that falls."""
        return [name for name in self.parts[SKEWED] if name not in AS_IT_IS]

    def lead(self, part: str, name: str) -> float:
        """How far ahead of FedAvg."""
        return self.mean(part, name) - self.mean(part, "fedavg")

    def cost(self, part: str, name: str, axis: str) -> float:
        """What a client spent to reach the target; infinite if not every seed reached it."""
        return float(self.parts[part][name]["to_target"].get(axis, math.inf))

    def near(self, part: str, name: str) -> int:
        """How many trials ended close to the best of them, on held-out data."""
        ends = [trial["accuracy"] or 0 for trial in self.grid(part, name)]
        return sum(end >= max(ends) - NEAR for end in ends)

    def grid(self, part: str, name: str) -> list[dict[str, Any]]:
        """The trials among which the setting was chosen."""
        wanted = [dict(setting) for setting in jobs.grid(part, name)]
        return [trial for trial in self.trials[part][name] if trial["setting"] in wanted]

    def decay_gain(self, name: str) -> float:
        """What it is worth on skewed data that the step size of the rule's setting falls."""
        return self.untuned(SKEWED, name) - self.constant(name)

    def constant(self, name: str) -> float:
        """The accuracy with the rule's setting on skewed data if the step size does not fall."""
        return float(self.parts[SKEWED][name]["untuned_constant"] or 0)

    def at_the_end_of_a_grid(self, part: str) -> list[str]:
        return [
            class_name(name)
            for name in self.parts[part]
            if len(self.parts[part][name]["setting"]) == 1
            and self.parts[part][name]["setting"]
            in (self.grid(part, name)[0]["setting"], self.grid(part, name)[-1]["setting"])
        ]

    def ranked(self, part: str) -> list[str]:
        """Best first. A method of which a seed diverged is last."""
        return sorted(self.parts[part], key=lambda name: -(finite(self.mean(part, name))))

    def best(self, part: str, among: Iterable[str]) -> str:
        return max(among, key=lambda name: finite(self.mean(part, name)))

    def best_at(self, part: str, axis: str, among: Iterable[str]) -> list[str]:
        """By the accuracy at equal cost, best first."""
        return sorted(among, key=lambda name: -self.equal(part, name, axis))

    def level(self, part: str, first: str, among: Iterable[str]) -> list[str]:
        """The others that the spread does not tell apart from the first."""
        top = self.accuracy(part, first)

        def gap(name: str) -> float:
            other = self.accuracy(part, name)
            return top.mean - other.mean - math.hypot(top.std or 0, other.std or 0)

        return [name for name in among if name != first and gap(name) <= 0]

    def cheapest(self, part: str, axis: str, among: Iterable[str]) -> list[str]:
        """By what it cost to reach the target, cheapest first."""
        return sorted(among, key=lambda name: self.cost(part, name, axis))

    @property
    def judged(self) -> list[str]:
        """The jobs on which no default was chosen, and that have been run."""
        return [job for job in ELSEWHERE if "tuned" in self.elsewhere[job].get("fedavg", {})]

    @property
    def jobs_of_defaults(self) -> int:
        return len(JOBS) + len(self.judged)

    def elsewhere_end(self, job: str, name: str, which: str = "default") -> float:
        """The accuracy on a job on which no default was chosen; NaN if it has not been run."""
        entry = self.elsewhere[job].get(name, {}).get(which)
        return float(entry["accuracy"] or 0) if entry else math.nan

    def untuned_loss(self, part: str, name: str, rival: str | None = None) -> float:
        """What the rule's setting loses to the method tuned, or to a tuned rival, with one seed."""
        seeds = self.content["seeds"]
        tuned = self.parts[part][rival or name]["accuracy"]
        first = tuned[seeds["measuring"].index(seeds["one"])]
        return float(first or 0) - self.untuned(part, name)

    def untuned_gap(self, name: str) -> float:
        """The most that the default loses to FedAvg tuned, over the jobs."""
        parts = [part for part in JOBS if name in self.parts[part]]
        return max(self.untuned_loss(part, name, "fedavg") for part in parts)

    def tuned_fedavg(self, job: str) -> float:
        """FedAvg's accuracy with the setting that was chosen for this job, with one seed."""
        if job in self.elsewhere:
            return self.elsewhere_end(job, "fedavg", "tuned")
        seeds = self.content["seeds"]
        ends = self.parts[job]["fedavg"]["accuracy"]
        return float(ends[seeds["measuring"].index(seeds["one"])] or 0)

    def worst_gap(self, name: str) -> float:
        """The same over the other jobs, too; infinite if it has not been run on all of them."""
        gaps = [self.untuned_gap(name)]
        for job in self.judged:
            gap = self.tuned_fedavg(job) - self.elsewhere_end(job, name)
            gaps.append(gap if math.isfinite(gap) else math.inf)
        return max(gaps)

    # The same in words.

    def end(self, part: str, name: str) -> str:
        return words(self.accuracy(part, name))

    def took(self, part: str, name: str, axis: str = "rounds") -> str:
        cost = self.cost(part, name, axis)
        return f"{cost / 1e6:.1f} MB" if axis == "bytes" else f"{cost:.0f}"

    def target(self, part: str) -> str:
        return f"{100 * self.content['targets'][part]:g} %"


def stat(values: Iterable[float | None]) -> Stat:
    return Stat.from_values([math.nan if value is None else value for value in values])


def finite(value: float) -> float:
    """0 for a mean that a diverged seed has made NaN."""
    return value if math.isfinite(value) else 0.0


def words(found: Stat) -> str:
    if not math.isfinite(found.mean):
        return "diverged"
    return f"{100 * found.mean:.1f} ± {100 * (found.std or 0):.1f} %"


def keeps_nothing(name: str) -> bool:
    """Whether a client keeps nothing between rounds in the partial job."""
    e = jobs.experiment(PARTIAL)
    algorithm = e.with_algorithm(name).algorithm_object(1).bind_model([(2, 3)])
    return tree.nbytes(algorithm.join(torch.zeros(6))) == 0


def class_name(name: str) -> str:
    return ALGORITHMS[name].__name__


def listed(names: Iterable[str]) -> str:
    return listing([class_name(name) for name in names])


def link(*names: str) -> str:
    links = (
        f"[{class_name(name)}](algorithms.md#{class_name(name).lower()})"
        for name in dict.fromkeys(names)
    )
    return " or ".join(links)


def written(setting: dict[str, float]) -> str:
    return ", ".join(f"{key} = {value:g}" for key, value in setting.items())


def mark(name: str) -> str:
    """The name in a table; a star for those whose step size cannot fall."""
    return link(name) + ("\\*" if name in CONSTANT_ONLY else "")


def percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else "diverged"


def points(difference: float | None) -> str:
    return f"{100 * (difference or 0):.1f} points"
