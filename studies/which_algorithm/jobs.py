"""The jobs of the study, the settings that each method tries, and the experiment of each run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fafed.algorithms import ALGORITHMS
from fafed.algorithms.earlier import EARLIER
from fafed.experiments.config import Experiment

ROOT = Path(__file__).parent.parent.parent
EXPERIMENTS = Path(__file__).parent / "configs"

TARGETS = {"skewed": 0.75, "iid": 0.8, "partial": 0.65}  # test accuracy
JOBS = tuple(TARGETS)
# Jobs on which no default was chosen.
ELSEWHERE = ("mnist", "wide", "low", "moderate", "high", "scaled", "characters")
POOLED = "pooled"

TUNING_SEED, SEEDS = 0, (1, 2, 3)
ONE_SEED = 1  # for defaults, and for runs at equal costs
SELDOM = 4  # rounds from one evaluation to the next while settings are chosen

END = 0.02  # the last step size as a share of the first, if it falls
FALL_BY_THEMSELVES = ("fedkron", "storm", "superadam")
CONSTANT_ONLY = ("fedglomo", "domo")  # methods that take no schedule
AS_IT_IS = (*FALL_BY_THEMSELVES, *CONSTANT_ONLY)

# The rule asks for another default, but the older one stays: the page says why.
KEPT = ("fedkron",)

Setting = tuple[tuple[str, float], ...]  # (("eta", 0.1),)


@cache
def experiment(job: str) -> Experiment:
    """A job's file, with the settings and grids of the first one."""
    own = Experiment.read(EXPERIMENTS / f"{job}.toml")
    if job in (JOBS[0], POOLED):
        return own
    first = experiment(JOBS[0])
    return own.changed(settings=first.settings | own.settings, search=first.search)


def names(job: str) -> list[str]:
    """The methods that can do this job."""
    every = experiment(job)
    return [
        name
        for name in every.search
        if every.participation == 1
        or not every.with_algorithm(name).algorithm_object(1).requires_all_clients
    ]


def grid(job: str, name: str) -> list[Setting]:
    return combinations(experiment(job).search[name])


def combinations(choices: Mapping[str, Sequence[Any]]) -> list[Setting]:
    return [
        tuple(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def default(name: str) -> Setting:
    """What the method has today if nobody chooses."""
    search = experiment(JOBS[0]).search.get(name) or experiment(POOLED).search[name]
    return tuple((key, getattr(ALGORITHMS[name](), key)) for key in search)


def before(name: str) -> Setting:
    """What it had before the rule."""
    earlier = EARLIER.get(name, {})
    return tuple((key, earlier.get(key, value)) for key, value in default(name))


def run(job: str, name: str, setting: Setting, kind: str, seed: int) -> Experiment:
    """The experiment of one run."""
    found = with_setting(experiment(job), name, setting, kind)
    return found.changed(seed=seed, eval_every=SELDOM if seed == TUNING_SEED else found.eval_every)


def with_setting(own: Experiment, name: str, setting: Setting, kind: str) -> Experiment:
    """A method with its setting. Step sizes are written out, so later defaults do not change it."""
    chosen: Mapping[str, Any] = dict(setting)
    if kind == "linear" and name not in AS_IT_IS:
        fall = {"schedule": "linear", "peak": chosen["eta"], "end": END}
        chosen = {**chosen, "eta": fall}
    return own.with_algorithm(name, **chosen)
