"""The results of the study, with the numbers and words that the page and the picture use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from fafed.algorithms import ALGORITHMS
from fafed.experiments.config import Experiment
from fafed.report.algorithm_cards import Card, card
from fafed.report.numbers import Stat
from studies.which_algorithm.measurement import EXPERIMENTS, ROOT, TARGETS

RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "which-algorithm.md"
PICTURE = ROOT / "docs" / "images" / "which-algorithm.svg"

SKEWED, ALIKE, PARTIAL, SECOND = TARGETS  # "alike" in the text is "iid" in the files


class Results:
    """The content of results.json."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.parts: dict[str, dict[str, Any]] = content["measured"]

    @cached_property
    def cards(self) -> dict[str, Card]:
        return {name: card(name) for name in self.parts[SKEWED]}

    @property
    def not_measured(self) -> list[str]:
        """The federated algorithms of the library that this study has not run."""
        return [
            name
            for name, algorithm in ALGORITHMS.items()
            if algorithm().population is None and name not in self.parts[SKEWED]
        ]

    def advisable(self, fits: Callable[[Card], bool] = lambda card: True) -> list[str]:
        """The methods that fit, without `naive`, which can leave the optimum."""
        return [name for name, card in self.cards.items() if name != "naive" and fits(card)]

    def accuracy(self, part: str, name: str) -> Stat:
        ends = self.parts[part][name]["accuracy"]
        return Stat.from_values([math.nan if end is None else end for end in ends])

    def mean(self, part: str, name: str) -> float:
        return self.accuracy(part, name).mean

    def lead(self, part: str, name: str) -> float:
        """How far ahead of FedAvg."""
        base = SKEWED if part == SECOND else part
        return self.mean(part, name) - self.mean(base, "fedavg")

    def cost(self, part: str, name: str, axis: str) -> float:
        """What a client spent to reach the target; infinite if not every seed reached it."""
        return float(self.parts[part][name]["to_target"].get(axis, math.inf))

    def default(self, part: str, name: str) -> float:
        """The accuracy with the default step size."""
        return float(self.parts[part][name]["default"] or 0)

    def near(self, part: str, name: str) -> int:
        """How many of the tried step sizes ended within three points of the best of them."""
        ends = [trial["accuracy"] or 0 for trial in self.parts[part][name]["trials"]]
        return sum(end >= max(ends) - 0.03 for end in ends)

    def at_the_end_of_a_grid(self, part: str) -> list[str]:
        return [
            class_name(name)
            for name, entry in self.parts[part].items()
            if entry["step"] in (entry["trials"][0]["step"], entry["trials"][-1]["step"])
        ]

    def ranked(self, part: str) -> list[str]:
        return sorted(self.parts[part], key=lambda name: -self.mean(part, name))

    def best(self, part: str, among: Iterable[str]) -> str:
        return max(among, key=lambda name: self.mean(part, name))

    def cheapest(self, axis: str, among: Iterable[str]) -> tuple[str, str]:
        """The two that reach the target on skewed data at the lowest cost."""
        first, second, *_ = sorted(among, key=lambda name: self.cost(SKEWED, name, axis))
        return first, second

    # The same in words.

    def end(self, part: str, name: str) -> str:
        stat = self.accuracy(part, name)
        return f"{100 * stat.mean:.1f} ± {100 * (stat.std or 0):.1f} %"

    def took(self, part: str, name: str, axis: str = "rounds") -> str:
        cost = self.cost(part, name, axis)
        return f"{cost / 1e6:.1f} MB" if axis == "bytes" else f"{cost:.0f}"

    def target(self, part: str) -> str:
        return f"{100 * self.content['targets'][part]:g} %"


def class_name(name: str) -> str:
    return ALGORITHMS[name].__name__


def link(*names: str) -> str:
    links = (
        f"[{class_name(name)}](algorithms.md#{class_name(name).lower()})"
        for name in dict.fromkeys(names)
    )
    return " or ".join(links)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def points(difference: float | None) -> str:
    return f"{100 * (difference or 0):.1f} points"


def read_experiment(part: str) -> Experiment:
    return Experiment.read(EXPERIMENTS / f"{part}.toml")
