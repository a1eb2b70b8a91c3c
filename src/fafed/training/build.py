"""Build a run that is ready for round 1 from an algorithm, an objective and data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from fafed.core.algorithm import Algorithm, AnyAlgorithm
from fafed.core.arguments import checked
from fafed.core.plain import number, plain
from fafed.core.wire import Wire
from fafed.data.checks import check_labels, check_numbers, check_sizes
from fafed.data.sources.base import Source
from fafed.data.sources.examples import Shuffled
from fafed.engines.base import Engine
from fafed.engines.distributed import Distributed
from fafed.engines.ranks import Ranks
from fafed.engines.simulation import Simulation
from fafed.errors import ConfigError
from fafed.objectives import module as objectives
from fafed.objectives.base import Objective
from fafed.objectives.function import Function
from fafed.privacy.clients import ClientNoise
from fafed.privacy.options import LEAST_SILOS, Privacy, check_wire, quorum
from fafed.training.baselines import Alone, check_baseline, pooled
from fafed.training.cohort import Cohort, Participation
from fafed.training.loop import Run
from fafed.training.private import private_clients, private_parts

MakeEngine = Callable[[AnyAlgorithm], Engine]  # of the algorithm that is bound to the model


def build(
    algorithm: AnyAlgorithm,
    objective: objectives.Model | Function,
    source: Source | None,
    *,
    rounds: int,
    local_steps: int,
    seed: int = 0,
    engine: str | MakeEngine = "auto",
    weights: str | Sequence[float] = "uniform",
    participation: Participation = 1.0,
    failure: float = 0.0,
    measure: Any = None,
    measure_every: int = 1,
    workers: int | None = None,
    threads: int = 1,
    ranks: Ranks | None = None,
    privacy: Privacy | None = None,
    wire: Wire | None = None,
    baseline: str | None = None,
    check_state: bool = False,
) -> Run:
    """A run in simulation, on several ranks, or on an engine of the caller. Everything is checked
    here: what cannot work is refused now, not in round 300.

    engine: the name of a back end, or a function that makes the engine. Such an engine has its own
    clients and weights. Then `source` is None; weights, workers, threads and ranks are not used.
    baseline: see `fafed.training.baselines`.
    """
    check_algorithm(algorithm)
    rounds, local_steps = checked("rounds", rounds), checked("local_steps", local_steps)
    privacy = Privacy() if privacy is None else privacy
    if not isinstance(privacy, Privacy):
        raise ConfigError(
            f"privacy must be an object such as fafed.Privacy(secure=True), got {privacy!r}"
        )
    check_wire(wire, privacy, baseline)
    budget, loss_before = None, None
    cohort = partial(Cohort, participation=participation, failure=failure, seed=seed)
    if privacy.secure:
        cohort = partial(cohort, quorum=quorum)
    if privacy.level == "client":
        cohort = partial(cohort, poisson=True)
    bound = algorithm.bind_model(objective.shapes).bind_run(rounds, local_steps)
    if callable(engine):
        made = engine(bound)
        who = cohort(made.population)
        if privacy.secure:
            check_secure(who)
    else:
        assert source is not None, "a back end needs the clients' data"
        who = cohort(len(source.examples))
        source = _checked(source, objective)
        if privacy == Privacy():  # the number would be in an error
            loss_before = partial(_loss_before, objective, source)
        check_baseline(baseline, source)
        if baseline is not None:
            assert isinstance(source, Shuffled)
            if privacy != Privacy():
                raise ConfigError(
                    f"baseline = {baseline!r} has no privacy options: take them out of one of both"
                )
            if ranks is not None and baseline == "local":
                raise ConfigError("baseline='local' runs in one process: leave out torchrun")
            run = partial(build, algorithm, objective, rounds=rounds, seed=seed, engine=engine)
            evaluated = {"measure": measure, "measure_every": measure_every, "workers": workers}
            if baseline == "pooled":
                one, steps = pooled(source, local_steps, len(who.invited(1)))
                return run(one, local_steps=steps, threads=threads, ranks=ranks, **evaluated)
            alone = partial(run, local_steps=local_steps, threads=threads, workers=1)
            return Alone(source, alone, threads=threads, **evaluated)
        goal: Objective = objective
        noise: ClientNoise | None = None
        if privacy.level == "client":
            noise, budget = private_clients(
                privacy,
                bound,
                objective,
                who,
                rounds=rounds,
                local_steps=local_steps,
                uniform=len(set(weights_of(weights, source.examples))) == 1,
                seed=seed,
            )
        elif privacy.secure:
            check_secure(who)
        if privacy.level == "example":
            goal, source, budget = private_parts(
                privacy,
                bound,
                objective,
                source,
                who,
                rounds=rounds,
                local_steps=local_steps,
                engine=engine,
                seed=seed,
            )
            engine = "loop"
        simulation = Simulation(
            bound,
            goal,
            source,
            weights=weights_of(weights, source.examples),
            steps=local_steps,
            engine=engine,
            workers=workers,
            threads=threads,
            encoding=privacy.encoding() if privacy.secure and noise is None else None,
            noise=noise,
            wire=wire,
            seed=seed,
        )
        made = simulation if ranks is None else Distributed(simulation, ranks)
    return Run(
        bound,
        made,
        objective.x0,
        objective.start().buffers,
        rounds=rounds,
        local_steps=local_steps,
        cohort=who,
        measure=measure,
        measure_every=measure_every,
        check_state=check_state,
        budget=budget,
        loss_before=loss_before,
    )


def _loss_before(
    objective: objectives.Model | Function, source: Source, clients: Sequence[int]
) -> float:
    """The mean loss at the initial model, on the first batch of each of these clients."""
    start, total = objective.start(), 0.0
    for client in clients:
        (batch,) = source.batches(source.draw(("round",), client, 0, 1))
        total += float(objective.evaluate(objective.x0, batch, start).loss)
    return total / len(clients)


def _checked(source: Source, objective: objectives.Model | Function) -> Source:
    """The source on the model's device. Data that cannot work are refused."""
    check_sizes(source)
    source = source.to(objective.x0.device, getattr(objective, "dtype", objective.x0.dtype))
    if isinstance(objective, objectives.Model):
        (batch,) = source.batches(source.draw(("round",), 0, 0, 1))
        everyone = range(len(source.examples))
        objective.probe(batch)
        check_labels(source, everyone, objective.classes, objective.averaged.ignored)
        check_numbers(source, everyone, objective.usable)
    return source


def check_secure(cohort: Cohort) -> None:
    """Refuse rounds with fewer clients than a secure sum needs."""
    schedule = cohort.participation
    for round in range(1, 1 + (len(schedule) if isinstance(schedule, Sequence) else 1)):
        if len(cohort.invited(round)) < LEAST_SILOS:
            raise ConfigError(
                f"privacy.secure: a secure sum needs at least {LEAST_SILOS} clients, round {round} "
                f"has {len(cohort.invited(round))}: use more clients, or a higher participation"
            )


def check_algorithm(algorithm: object) -> None:
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm must be an object such as fafed.FAFED(eta=0.01), got {_told(algorithm)}"
        )


def weights_of(weights: str | Sequence[float], examples: Sequence[int]) -> list[float]:
    """A weight for each client."""
    if isinstance(weights, str) and weights == "uniform":
        return [1.0] * len(examples)
    if isinstance(weights, str) and weights == "examples":
        return [float(n) for n in examples]
    given = [plain(w) for w in weights] if isinstance(weights, Iterable) else []
    if len(given) != len(examples) or not all(number(w) and w > 0 for w in given):
        raise ConfigError(
            f"weights must be 'uniform', 'examples' or {len(examples)} positive numbers, "
            f"one per client, got {weights!r}"
        )
    return [float(w) for w in given]


def _told(algorithm: object) -> str:
    if isinstance(algorithm, type):
        return f"the class {algorithm.__name__}: write {algorithm.__name__}(...)"
    if isinstance(algorithm, str):
        return f"the name {algorithm!r}: `fafed algorithms` lists the classes and their settings"
    return f"{algorithm!r}"
