"""Decisions about the language model, and about Figures 2 to 4 on other data with a search at every
level.

As in `Decisions`, a function returns what is decided, or raises Missing with the jobs it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from studies.paper.decisions import Decisions, Race, cached, points, subset
from studies.paper.ledger import Job, Outcome
from studies.paper.protocol import Case, Settings


@cached
def chosen(decisions: Decisions, algorithm: str) -> Race:
    """The search by the loss on held-out text, with the same number of trials for every method."""
    return _search(decisions, decisions.protocol.text.experiment, algorithm)


@cached
def checked(decisions: Decisions, algorithm: str) -> Race:
    """The same search with a model of another size."""
    return _search(decisions, decisions.protocol.text.check.experiment, algorithm)


def _search(decisions: Decisions, name: str, algorithm: str) -> Race:
    p = decisions.protocol.text
    grid = subset(points(p.grids[algorithm]), p.trials)
    return decisions.race(name, algorithm, grid, p, decisions.protocol.experiment(name).rounds)


def final(decisions: Decisions, algorithm: str, seed: int) -> Outcome:
    """The whole length, with the setting that was chosen."""
    return _whole(decisions, algorithm, chosen(decisions, algorithm).winner.job.settings, seed)


def control(decisions: Decisions, seed: int) -> Outcome:
    """STEM with FAFED's alpha and its step divided by rho: FAFED where sqrt(v) is far below rho."""
    own = chosen(decisions, "fafed").winner.job.settings
    return _whole(decisions, "stem", _as_stem(own), seed)


def _as_stem(fafed: Settings) -> Settings:
    eta = fafed["eta"]
    if isinstance(eta, Mapping):
        step: Any = {**eta, "kappa": eta["kappa"] / fafed["rho"]}
    else:
        step = eta / fafed["rho"]
    return {"eta": step, "alpha": fafed["alpha"]}


# The paper's sizes.


def large(decisions: Decisions, name: str, algorithm: str) -> Outcome:
    return _large(decisions, name, algorithm, large_settings(decisions, name, algorithm))


def large_control(decisions: Decisions, name: str) -> Outcome:
    return _large(decisions, name, "stem", _as_stem(large_settings(decisions, name, "fafed")))


def large_settings(decisions: Decisions, name: str, algorithm: str) -> Settings:
    """The paper's step size, with the momentum that was best with it in the small trials."""
    own = decisions.protocol.experiment(name).with_algorithm(algorithm).algorithm.options
    trials = [trial.job.settings for trial in chosen(decisions, algorithm).rungs[0]]
    return next(settings for settings in trials if settings["eta"] == own["eta"])


def _large(decisions: Decisions, name: str, algorithm: str, settings: Settings) -> Outcome:
    rounds, seed = (
        decisions.protocol.experiment(name).rounds,
        decisions.protocol.language[name].seed,
    )
    return decisions.one(Job(name, algorithm, settings, seed, rounds))


# Parts that need no search.


def first_rounds(decisions: Decisions, case: Case) -> Outcome:
    p = decisions.protocol.first_rounds
    changes = {"eval_every": p.rounds, **case.changes}
    return decisions.one(
        Job(p.experiment, case.algorithm, case.settings, p.seed, p.rounds, changes)
    )


def again(decisions: Decisions, name: str, algorithm: str, seed: int) -> Outcome:
    """A curve on MNIST or CIFAR-10 with a search at its own level."""
    p = decisions.protocol.again
    settings = _searched(decisions, name, algorithm).winner.job.settings
    return decisions.one(Job(name, algorithm, settings, seed, p.rounds))


@cached
def _searched(decisions: Decisions, name: str, algorithm: str) -> Race:
    p = decisions.protocol.again
    grid = subset(points(decisions.grid(name, algorithm)), p.trials)
    return decisions.race(name, algorithm, grid, p, p.rounds)


def _whole(decisions: Decisions, algorithm: str, settings: Settings, seed: int) -> Outcome:
    p = decisions.protocol.text
    rounds = decisions.protocol.experiment(p.experiment).rounds
    return decisions.one(Job(p.experiment, algorithm, settings, seed, rounds))
