"""Build a run that is ready for round 1 from an algorithm, an objective and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fafed.core.algorithm import Algorithm, AnyAlgorithm
from fafed.data.checks import check_labels
from fafed.data.sources.examples import ClientBatches, Source
from fafed.engines.distributed import Distributed
from fafed.engines.ranks import Ranks
from fafed.engines.simulation import Simulation
from fafed.errors import ConfigError
from fafed.objectives import module as objectives
from fafed.objectives.base import Objective
from fafed.objectives.function import Function
from fafed.privacy.options import LEAST_SILOS, Privacy, quorum
from fafed.training.cohort import Cohort, Participation
from fafed.training.loop import Run, check_lengths
from fafed.training.private import private_parts


def build(
    algorithm: AnyAlgorithm,
    objective: objectives.Model | Function,
    source: Source,
    *,
    rounds: int,
    local_steps: int,
    seed: int = 0,
    engine: str = "auto",
    weights: str | Sequence[float] = "uniform",
    participation: Participation = 1.0,
    failure: float = 0.0,
    measure: Any = None,
    measure_every: int = 1,
    workers: int | None = None,
    threads: int = 1,
    ranks: Ranks | None = None,
    privacy: Privacy | None = None,
) -> Run:
    """A run in simulation or on several ranks. Everything is checked here: what cannot work is
    refused now, not in round 300."""
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm must be an object such as fafed.FAFED(eta=0.01), got {algorithm!r}"
        )
    source = source.to(objective.x0.device, getattr(objective, "dtype", objective.x0.dtype))
    if isinstance(objective, objectives.Model):
        (batch,) = ClientBatches(source.gather, source.draw(("round",), 0, 0, 1))
        objective.probe(batch)
        clients, ignored = range(len(source.examples)), objective.averaged.ignored
        check_labels(source, clients, objective.classes, ignored)
    check_lengths(rounds, local_steps)
    algorithm = algorithm.bind_model(objective.shapes).bind_run(rounds, local_steps)
    population = len(source.examples)
    privacy = privacy or Privacy()
    options = {"quorum": quorum} if privacy.secure else {}
    cohort = Cohort(population, participation=participation, failure=failure, seed=seed, **options)
    if privacy.secure:
        check_secure(cohort)
    goal: Objective = objective
    budget = None
    if privacy.level is not None:
        goal, source, budget = private_parts(
            privacy,
            algorithm,
            objective,
            source,
            cohort,
            rounds=rounds,
            local_steps=local_steps,
            engine=engine,
            seed=seed,
        )
        engine = "loop"
    simulation = Simulation(
        algorithm,
        goal,
        source,
        weights=weights_of(weights, source.examples),
        steps=local_steps,
        engine=engine,
        workers=workers,
        threads=threads,
        encoding=privacy.encoding() if privacy.secure else None,
        seed=seed,
    )
    return Run(
        algorithm,
        simulation if ranks is None else Distributed(simulation, ranks),
        objective.x0,
        objective.start().buffers,
        rounds=rounds,
        local_steps=local_steps,
        cohort=cohort,
        measure=measure,
        measure_every=measure_every,
        budget=budget,
    )


def check_secure(cohort: Cohort) -> None:
    """Refuse rounds with fewer clients than a secure sum needs."""
    schedule = cohort.participation
    for round in range(1, 1 + (len(schedule) if isinstance(schedule, Sequence) else 1)):
        if len(cohort.invited(round)) < LEAST_SILOS:
            raise ConfigError(
                f"privacy.secure: a secure sum needs at least {LEAST_SILOS} clients, round {round} "
                f"has {len(cohort.invited(round))}: use more clients, or a higher participation"
            )


def weights_of(weights: str | Sequence[float], examples: Sequence[int]) -> list[float]:
    """A weight for each client."""
    if weights == "uniform":
        return [1.0] * len(examples)
    if weights == "examples":
        return [float(n) for n in examples]
    if isinstance(weights, str) or len(weights) != len(examples) or not all(w > 0 for w in weights):
        raise ConfigError(
            f"weights must be 'uniform', 'examples' or {len(examples)} positive numbers, "
            f"one per client, got {weights!r}"
        )
    return [float(w) for w in weights]
