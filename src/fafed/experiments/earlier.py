"""Runs that began before a default of their algorithm was replaced.

An experiment's file need not name a setting. What it leaves out has the default of the fafed that
runs it. If a default is replaced, the same file is another experiment. Its digest says so, because
the new default counts as if the file named it. A run that began before goes on only when its file
names the earlier value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fafed.experiments.config import Experiment


def filled(algorithm: Mapping[str, Any]) -> dict[str, Any]:
    """The table of an algorithm, with the defaults that have replaced others written out."""
    return {**algorithm, **{key: new for key, (_, new) in _unnamed(algorithm).items()}}


def unnamed(algorithm: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The table without settings that have the earlier default: one of them, or several."""
    earlier = _earlier(algorithm)
    equal = [key for key, value in earlier.items() if algorithm.get(key) == value]
    for count in range(1, len(equal) + 1):
        for left_out in itertools.combinations(equal, count):
            yield {key: value for key, value in algorithm.items() if key not in left_out}


def begun_with(experiment: Experiment) -> str:
    """What is wrong, and the cure, if this is a run that began with earlier defaults."""
    replaced = _unnamed({"name": experiment.algorithm.name, **experiment.algorithm.options})
    if not replaced:
        return ""
    was = ", ".join(f"{key} = {old!r}" for key, (old, _) in replaced.items())
    now = ", ".join(f"{key} = {new!r}" for key, (_, new) in replaced.items())
    return (
        f"began when the defaults of {experiment.algorithm.name} had {was}; now they have {now}. "
        f"To go on with that run, write {was} under [algorithm] of its experiment.toml, one line "
        "for each. To start again with round 1"
    )


def _unnamed(algorithm: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Setting -> its earlier default and today's, for those that the table does not name."""
    from fafed.algorithms import ALGORITHMS

    missing = {k: old for k, old in _earlier(algorithm).items() if k not in algorithm}
    if not missing:
        return {}
    today = ALGORITHMS[algorithm["name"]]()
    return {key: (old, getattr(today, key)) for key, old in missing.items()}


def _earlier(algorithm: Mapping[str, Any]) -> Mapping[str, Any]:
    from fafed.algorithms.earlier import EARLIER

    return EARLIER.get(algorithm["name"], {})
