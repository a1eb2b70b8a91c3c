"""Make a run private for every example, or for every client: its data, its gradients, and the count
of its cost."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from fafed.core.algorithm import AnyAlgorithm
from fafed.data.sources.base import Source
from fafed.data.sources.examples import Examples
from fafed.data.sources.poisson import Poisson
from fafed.engines.private import Private, refuse_what_mixes_examples
from fafed.engines.private_mean import parts_of_messages
from fafed.errors import ConfigError
from fafed.objectives.base import Objective
from fafed.privacy.accounting import (
    OVERFLOW,
    Accountant,
    RoundCosts,
    Use,
    cap,
    probability_of_fewer,
    round_costs,
)
from fafed.privacy.clients import ClientNoise
from fafed.privacy.options import LEAST_SILOS, Privacy
from fafed.training.budget import Budget
from fafed.training.cohort import Cohort

log = logging.getLogger("fafed")
SIMULATED = "privacy is simulated: the noise is reproducible from the seed, so it protects nobody"


class PrivateParts(NamedTuple):
    objective: Private
    source: Poisson
    budget: Budget


def private_parts(
    privacy: Privacy,
    algorithm: AnyAlgorithm,
    objective: Objective,
    source: Source,
    cohort: Cohort,
    *,
    rounds: int,
    local_steps: int,
    engine: str,
    seed: int,
) -> PrivateParts:
    """The parts of a run with privacy.level = "example", in simulation."""
    if engine not in ("auto", "loop"):
        raise ConfigError(
            f"engine = {engine!r} cannot clip example by example: privacy.level = 'example' needs "
            "engine = 'loop' or 'auto'"
        )
    check_examples(privacy, objective, source.examples)
    everyone = range(len(source.examples))
    shown, sampled = private_gradients(
        privacy, objective, source, 0, rounds=rounds, local_steps=local_steps, seed=seed
    )
    budget = example_budget(
        privacy,
        algorithm,
        objective,
        [sampled.rates(client) for client in everyone],
        cohort,
        rounds=rounds,
        local_steps=local_steps,
    )
    log.warning(SIMULATED)
    return PrivateParts(shown, sampled, budget)


def check_examples(privacy: Privacy, objective: Objective, examples: Sequence[int]) -> None:
    """Refuse a run with privacy.level = "example" that could not keep its promise to clients with
    so many examples."""
    delta = privacy.delta
    assert delta is not None
    refuse_what_mixes_examples(objective)
    largest = max(examples)
    if delta >= 1 / largest:
        raise ConfigError(
            f"privacy.delta = {delta:g} promises nothing to a client with {largest} examples: one "
            f"of them could be published; use less than {1 / largest:.1g}"
        )
    if privacy.combine and (objective.clip is not None or objective.sam):
        raise ConfigError(
            "privacy.combine = true asks for the difference of two gradients, so a single gradient "
            "cannot be changed: leave out clip and sam"
        )


def private_gradients(
    privacy: Privacy,
    objective: Objective,
    source: Source,
    client: int,
    *,
    rounds: int,
    local_steps: int,
    seed: int,
) -> tuple[Private, Poisson]:
    """Private gradients and Poisson samples, in simulation and on a real silo. The fastest way to
    clip is chosen with examples of this client."""
    noise, clip, delta = privacy.noise, privacy.clip, privacy.delta
    assert noise is not None
    assert clip is not None
    assert delta is not None
    if type(source) is not Examples:
        raise ConfigError(
            "privacy.level = 'example' needs independent examples, which Poisson sampling can "
            f"draw; this data is {type(source).__name__}"
        )
    draws = rounds * (local_steps + 2) * len(source.examples)
    sampled = Poisson(source, lru_cache(lambda n, rate: cap(n, rate, draws, delta)))
    shown = Private(objective, noise=noise, clip=clip, seed=seed, combine=privacy.combine)
    (batch,) = sampled.batches(sampled.draw(("round",), client, 0, 1))
    shown.choose(batch)
    return shown, sampled


def example_budget(
    privacy: Privacy,
    algorithm: AnyAlgorithm,
    objective: Objective,
    rates: Sequence[dict[str, float]],
    cohort: Cohort,
    *,
    rounds: int,
    local_steps: int,
) -> Budget:
    """The plan of what the clients spend. `rates`: of each client, kind of batch -> sampling rate.
    It needs no data."""
    noise, delta = privacy.noise, privacy.delta
    assert noise is not None
    assert delta is not None
    costs = round_costs(algorithm, objective.x0, local_steps, len(rates), combine=privacy.combine)
    accountant = Accountant(
        costs.times(objective.evaluations),
        rates,
        noise=noise,
        delta=delta,
        invited=cohort.invited,
    )
    cure = "use more noise, smaller batches or fewer local steps"
    return _budget(accountant, privacy, rounds, cure)


def _budget(accountant: Accountant, privacy: Privacy, rounds: int, cure: str) -> Budget:
    budget = Budget(accountant, privacy.max_epsilon)
    if budget.affordable(rounds) == 0:
        raise ConfigError(
            f"privacy.max_epsilon = {privacy.max_epsilon:g} is less than one round costs, epsilon "
            f"= {accountant.epsilon(1):.3g}: {cure}"
        )
    return budget


def private_clients(
    privacy: Privacy,
    algorithm: AnyAlgorithm,
    objective: Objective,
    cohort: Cohort,
    *,
    rounds: int,
    local_steps: int,
    uniform: bool,
    seed: int,
) -> tuple[ClientNoise, Budget]:
    """The parts of a run with privacy.level = "client", in simulation."""
    noise, clip, delta = privacy.noise, privacy.clip, privacy.delta
    assert noise is not None
    assert clip is not None
    assert delta is not None
    rate, population = cohort.participation, cohort.population
    if not isinstance(rate, float | int):
        raise ConfigError(
            "privacy.level = 'client' draws each client with the same probability: participation "
            f"must be a number in (0, 1], got {rate!r}"
        )
    if not uniform:
        raise ConfigError(
            "privacy.level = 'client' bounds what each client adds to the sum: use "
            "weights = 'uniform'"
        )
    if objective.start().buffers:
        raise ConfigError(
            "the model has buffers, such as BatchNorm's statistics, which would leave a client "
            "without noise: use nn.GroupNorm"
        )
    if delta >= 1 / population:
        raise ConfigError(
            f"privacy.delta = {delta:g} promises nothing to one of {population} clients: its data "
            f"could be published; use less than {1 / population:.1g}"
        )
    parts = parts_of_messages(algorithm, objective.x0, local_steps, population)
    for name in privacy.factors:
        if name not in parts:
            raise ConfigError(
                f"privacy.factors.{name}: the messages have no such part; they have "
                + ", ".join(sorted(parts))
            )
    least = LEAST_SILOS if privacy.secure else 1
    few = probability_of_fewer(least, population, float(rate))
    if few * rounds > OVERFLOW * delta:
        raise ConfigError(
            f"with participation = {rate:g} of {population} clients, a round has fewer than "
            f"{least} with probability {few:.1g}, which everyone would see: use a larger "
            "participation or more clients"
        )
    openings, each = len(algorithm.opening()), len(algorithm.exchanges())
    costs = RoundCosts(*(Counter({Use("client", k): 1}) for k in (openings + each, each)))
    accountant = Accountant(
        costs, [{"client": float(rate)}], noise=noise, delta=delta, invited=lambda round: [0]
    )
    rule = ClientNoise(clip, noise, rate, population, privacy.factors, privacy.secure, seed)
    cure = "use more noise or a smaller participation"
    budget = _budget(accountant, privacy, rounds, cure)
    log.warning(SIMULATED)
    return rule, budget
