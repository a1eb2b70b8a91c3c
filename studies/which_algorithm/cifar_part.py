"""The part of the page about CIFAR-10: what has been run so far, and what has not."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fafed import models
from fafed.experiments.config import Experiment
from fafed.report.numbers import NOTHING, Stat, listing
from studies import markdown
from studies.which_algorithm import cifar
from studies.which_algorithm.cifar import (
    BEST,
    FEDAVGM,
    GRIDS,
    JOBS,
    KNOWN,
    OURS,
    Found,
    algorithm,
)
from studies.which_algorithm.jobs import END, SEEDS, TUNING_SEED, Setting
from studies.which_algorithm.results import class_name, percent, stat, words, written

NOT_YET = "not run yet"
TITLES = {
    JOBS[0]: "Ten of 100 clients in each round, Dirichlet 0.6",
    JOBS[1]: "Ten of 100 clients in each round, Dirichlet 0.1",
    JOBS[2]: "Ten silos, all of them in every round, Dirichlet 0.1",
}


def cifar_part(found: Found) -> str:
    e = cifar.experiment(JOBS[0])
    done = sum(found.complete(job) for job in JOBS)
    state = "" if done == len(JOBS) else f" {_so_far(found)}"
    text = f"""\
## CIFAR-10, a small ResNet

The job that papers use, made small. The network is a ResNet of 8 layers with GroupNorm and
{_parameters(e):,} parameters. A run has {e.rounds} rounds of {e.local_steps} local steps with
batches of {e.batch_size}. No network is trained to its end in so few rounds: the numbers tell how
fast methods begin.{state}

- The methods: {listed(KNOWN)}, with which papers compare; {listed(OURS)}; and {listed(BEST)}, the
  two best of the others in the mean of the three settings above.
- FedAvgM has server_momentum = 0.9, FedAdam eta = 0.1, and FAFED alpha = 0.9.
- Each has three trials of its step size, with seed 0. The best one on held-out data after the last
  round is measured with seeds {listing([str(seed) for seed in SEEDS])} on the test set. Step sizes
  fall to {100 * END:g} %.
- The presets `cifar-10-dirichlet-0.6`, `cifar-10-dirichlet-0.1` and `cifar-10-silos` are larger.
  They have not been measured.
"""
    for job in (job for job in JOBS if found.begun(job)):
        text += f"\n### {TITLES[job]}\n\n{first(found, job)}"
        head = ["method", "accuracy", "setting", "trials"]
        text += markdown.table(head, [_row(found, job, name) for name in _ranked(found, job)])
    if missing := [TITLES[job] for job in JOBS if not found.begun(job)]:
        text += f"\nNot run yet: {'; '.join(missing)}.\n"
    return text


def deeper(found: Found) -> list[str]:
    """Advice for a larger network, from the jobs on which everybody has been measured."""
    complete = [job for job in JOBS if found.complete(job)]
    if not complete:
        return []
    told = ["On [CIFAR-10 with a small ResNet](#cifar-10-a-small-resnet) methods differ more."]
    for job in complete:
        top, title = _ranked(found, job)[0], TITLES[job]
        told += [
            f"{title}: {_name(top)} ends highest, at {words(_end(found, job, top))}.",
            f"FedAvg ends at {words(_end(found, job, 'fedavg'))}.",
        ]
    return told


def _parameters(e: Experiment) -> int:
    model = models.build(e.model.name, **e.model.options)
    return sum(p.numel() for p in model.parameters())


def _name(name: str) -> str:
    return "FedAvgM" if name == FEDAVGM else class_name(name)


def listed(names: Iterable[str]) -> str:
    return listing([_name(name) for name in names])


def _so_far(found: Found) -> str:
    runs = sum(1 for job in JOBS for name in GRIDS for _ in _made(found, job, name))
    every = len(JOBS) * sum(len(grid) + len(SEEDS) for grid in GRIDS.values())
    return f"**This part is not complete: {runs} of {every} runs have been made.**"


def _made(found: Found, job: str, name: str) -> list[object]:
    return [*found.trials(job, name), *found.measured(job, name)]


def first(found: Found, job: str) -> str:
    """Who ends highest, once everybody has been measured, with those that the spread does not tell
    apart from it."""
    if not found.complete(job):
        return "Not complete. There is no ranking yet.\n\n"
    ends = {name: _end(found, job, name) for name in GRIDS}
    top = max(ends, key=lambda name: _finite(ends[name].mean))
    level = [
        _name(name)
        for name, end in ends.items()
        if name != top and ends[top].mean - _finite(end.mean) <= _spread(ends[top], end)
    ]
    told = f"The spread does not tell it apart from {listing(level)}." if level else ""
    return f"{_name(top)} ends highest: {words(ends[top])}. {told}".strip() + "\n\n"


def _row(found: Found, job: str, name: str) -> list[str]:
    trials = [found.of(job, name, setting, TUNING_SEED) for setting in GRIDS[name]]
    shown = [percent(trial["held_out"] or math.nan) if trial else NOTHING for trial in trials]
    setting, seeds = found.chosen(job, name), found.measured(job, name)
    whole = len(seeds) == len(SEEDS)
    end = words(_end(found, job, name)) if whole else _of_fewer(seeds)
    return [
        f"[{_name(name)}](algorithms.md#{class_name(algorithm(name)).lower()})",
        end,
        written(_varied(name, setting)) if setting else NOT_YET,
        ", ".join(shown) if any(trials) else NOT_YET,
    ]


def _varied(name: str, setting: Setting) -> dict[str, float]:
    """Without what is the same in all trials."""
    same = set.intersection(*(set(trial) for trial in GRIDS[name]))
    return {key: value for key, value in setting if (key, value) not in same}


def _of_fewer(seeds: list[float | None]) -> str:
    if not seeds:
        return NOT_YET
    return f"{percent(_finite(stat(seeds).mean))} ({len(seeds)}/{len(SEEDS)})"


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
