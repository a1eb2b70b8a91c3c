"""Decisions about Table 2 with a step size that falls in a straight line over the run.

As in `Decisions`, a function returns what is decided, or raises Missing with the jobs it needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from fafed.algorithms import ALGORITHMS
from studies.paper.decisions import Decisions, Race, cached, multiples, points
from studies.paper.ledger import Job, Outcome
from studies.paper.protocol import Settings

NEARLY = 0.95  # a run of this share of the rounds that a budget allows is not made again


@cached
def chosen(decisions: Decisions, name: str, algorithm: str) -> Race:
    """The search, with the same number of trials for every method."""
    return decisions.race(
        name, algorithm, candidates(decisions, name, algorithm), decisions.protocol.decay
    )


def candidates(decisions: Decisions, name: str, algorithm: str) -> list[Settings]:
    """Multiples of eta in the settings of the two latest choices; for a newer method its grid."""
    p = decisions.protocol.decay
    if algorithm in p.grids:
        found = points(p.grids[algorithm])
    else:
        found = [
            {**base, "eta": eta}
            for base in _bases(decisions, name, algorithm)
            for eta in multiples(base["eta"], p.eta_times)
        ]
    return [fall for settings in found for fall in falls(algorithm, settings, p.end)]


def _bases(decisions: Decisions, name: str, algorithm: str) -> list[Settings]:
    searches = (decisions.momentum, decisions.tuned, decisions.fair)
    found: list[Settings] = []
    for search in searches:
        settings = search(name, algorithm).winner.job.settings
        if settings not in found:
            found.append(settings)
    return found[:2]


def falls(algorithm: str, settings: Settings, end: float) -> list[Settings]:
    """The settings with a step size that falls; FedKron's falls by itself.

    FedAdam's step m / sqrt(v) does not shrink with those of the clients. So methods of its kind
    are tried twice, with a step of the server that stays and with one that falls, too.
    """
    cls = ALGORITHMS[algorithm]
    if cls.filled_from_run:
        return [dict(settings)]
    rules = {f.name: f.metadata["rule"] for f in fields(cls)}
    rates = [n for n in ("eta", "eta_g") if n in settings and rules[n].schedule]
    fall = {n: {"schedule": "linear", "peak": settings[n], "end": end} for n in rates}
    return [{**settings, **{n: fall[n] for n in rates[:k]}} for k in range(1, len(rates) + 1)]


def final(decisions: Decisions, name: str, algorithm: str, seed: int) -> Outcome:
    rounds = decisions.rounds(name)
    every = math.ceil(rounds / decisions.protocol.decay.readings)
    return _measured(decisions, name, algorithm, seed, rounds, every)


def at_cost(decisions: Decisions, name: str, algorithm: str, axis: str, seed: int) -> Outcome:
    """A run of its own, whose step size falls over as many rounds as cost what FedAvg's run costs.

    `axis` is "gradients" or "bytes".
    """
    whole = final(decisions, name, algorithm, seed)
    reference = final(decisions, name, "fedavg", seed)
    limit = float(reference.columns[axis][-1] or 0)
    costs, rounds = zip((0.0, 0.0), *((c, r) for r, c in whole.series(axis)), strict=True)
    allowed = max(1, int(np.interp(limit, costs, rounds) + 1e-9))
    if allowed >= NEARLY * whole.job.rounds:
        return whole
    return _measured(decisions, name, algorithm, seed, allowed, allowed)


def _measured(
    decisions: Decisions, name: str, algorithm: str, seed: int, rounds: int, every: int
) -> Outcome:
    settings = chosen(decisions, name, algorithm).winner.job.settings
    return decisions.one(Job(name, algorithm, settings, seed, rounds, {"eval_every": every}))


def calls_of(decisions: Decisions) -> Sequence[tuple[str, str, int]]:
    """(method, "rounds", "gradients" or "bytes", seed) of all runs that are measured."""
    p = decisions.protocol.decay
    return [
        (m, axis, seed)
        for axis in ("rounds", "gradients", "bytes")
        for seed in p.seeds
        for m in p.methods
    ]


def measured(decisions: Decisions, name: str, algorithm: str, axis: str, seed: int) -> Outcome:
    if axis == "rounds":
        return final(decisions, name, algorithm, seed)
    return at_cost(decisions, name, algorithm, axis, seed)
