"""The part of the page about CIFAR-10: what has been run so far, and what has not."""

from __future__ import annotations

import math

from fafed.report.numbers import Stat, listing
from studies import markdown
from studies.which_algorithm import cifar
from studies.which_algorithm.cifar import GRIDS, JOBS, Found
from studies.which_algorithm.jobs import SEEDS, Setting
from studies.which_algorithm.results import class_name, link, percent, stat, words, written

NOT_YET = "not run yet"
TITLES = {
    JOBS[0]: "Dirichlet 0.1, ten of 100 clients in each round",
    JOBS[1]: "Dirichlet 0.6, ten of 100 clients in each round",
    JOBS[2]: "Ten silos, Dirichlet 0.6, all of them in every round",
}


def cifar_part(found: Found) -> str:
    if not any(found.content["runs"].values()):
        return f"## CIFAR-10, a small ResNet\n\n{NOT_YET.capitalize()}.\n"
    e = cifar.experiment(JOBS[0])
    begun = [job for job in JOBS if found.content["runs"][job]]
    done = sum(found.complete(job) for job in JOBS)
    state = "" if done == len(JOBS) else f" {_so_far(found)}"
    text = f"""\
## CIFAR-10, a small ResNet

The job that papers use, made small: a ResNet of 8 layers with GroupNorm and
{found.content.get("parameters", 0):,} parameters, {e.rounds} rounds of {e.local_steps} local steps
with batches of {e.batch_size}. The presets `cifar-10-dirichlet-0.1`, `cifar-10-dirichlet-0.6` and
`cifar-10-silos` have the larger versions, which have not been measured. Each of {len(GRIDS)}
methods has three trials of its step size with seed 0 on held-out data. The best one is measured on
the test set with seeds {listing([str(seed) for seed in SEEDS])}. Step sizes fall to 2 %. After so
few rounds no network is trained to its end: the numbers tell how fast methods begin.{state}
"""
    for job in begun:
        text += f"\n### {TITLES[job]}\n\n{first(found, job)}"
        head = ["method", "held-out, by trial", "setting", "accuracy", "seeds"]
        text += markdown.table(head, [_row(found, job, name) for name in _ranked(found, job)])
    if missing := [TITLES[job] for job in JOBS if job not in begun]:
        text += f"\nNot run yet: {'; '.join(missing)}.\n"
    return text


def _so_far(found: Found) -> str:
    runs = sum(len(found.content["runs"][job]) for job in JOBS)
    every = len(JOBS) * sum(len(grid) + len(SEEDS) for grid in GRIDS.values())
    return f"**This part is not complete: {runs} of {every} runs have been made.**"


def first(found: Found, job: str) -> str:
    """Who ends highest, once everybody has been measured, with those that the spread does not tell
    apart from it."""
    if not found.complete(job):
        return "Not complete. There is no ranking yet.\n\n"
    ends = {name: _end(found, job, name) for name in GRIDS}
    top = max(ends, key=lambda name: _finite(ends[name].mean))
    level = [
        class_name(name)
        for name, end in ends.items()
        if name != top and ends[top].mean - _finite(end.mean) <= _spread(ends[top], end)
    ]
    told = f"The spread does not tell it apart from {listing(level)}." if level else ""
    return f"{class_name(top)} ends highest: {words(ends[top])}. {told}".strip() + "\n\n"


def _row(found: Found, job: str, name: str) -> list[str]:
    trials = [found.of(job, name, setting, 0) for setting in GRIDS[name]]
    shown = [
        f"{_varied(setting)}: {percent(trial['held_out'] or math.nan) if trial else NOT_YET}"
        for setting, trial in zip(GRIDS[name], trials, strict=True)
    ]
    setting, seeds = found.chosen(job, name), found.measured(job, name)
    return [
        link(name),
        ", ".join(shown) if any(trials) else NOT_YET,
        written(dict(setting)) if setting else NOT_YET,
        words(_end(found, job, name)) if len(seeds) > 1 else _single(seeds),
        f"{len(seeds)} of {len(SEEDS)}",
    ]


def _varied(setting: Setting) -> str:
    return f"{dict(setting)['eta']:g}"


def _single(seeds: list[float | None]) -> str:
    return percent(seeds[0] or math.nan) if seeds else NOT_YET


def _ranked(found: Found, job: str) -> list[str]:
    """By accuracy if all are measured, else in the order of the study."""
    if not found.complete(job):
        return list(GRIDS)
    return sorted(GRIDS, key=lambda name: -_finite(_end(found, job, name).mean))


def _end(found: Found, job: str, name: str) -> Stat:
    return stat(found.measured(job, name))


def _spread(one: Stat, other: Stat) -> float:
    return math.hypot(one.std or 0, other.std or 0)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
