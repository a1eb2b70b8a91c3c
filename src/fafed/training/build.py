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
from fafed.objectives.function import Function
from fafed.training.cohort import Cohort, Participation
from fafed.training.loop import Run, check_lengths


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
    cohort = Cohort(population, participation=participation, failure=failure, seed=seed)
    simulation = Simulation(
        algorithm,
        objective,
        source,
        weights=weights_of(weights, source.examples),
        steps=local_steps,
        engine=engine,
        workers=workers,
        threads=threads,
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
