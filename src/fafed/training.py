"""The call people will use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fafed import objective as objectives
from fafed import randomness
from fafed.algorithm import Algorithm
from fafed.cohort import Cohort, Participation
from fafed.data.batches import (
    BatchSize,
    ClientBatches,
    Source,
    as_tensors,
    examples_of,
)
from fafed.data.checks import check_labels, check_measured
from fafed.engines.distributed import Distributed
from fafed.engines.ranks import Ranks
from fafed.engines.simulation import Simulation
from fafed.errors import ConfigError
from fafed.measuring import chunks, measuring
from fafed.objective import Loss, Metric
from fafed.records import History
from fafed.run import Diverged, Run


@dataclass(frozen=True)
class Result:
    """A finished training."""

    model: nn.Module  # the trained module, in eval mode; the one passed in is not changed
    x: Tensor  # its flat vector
    history: History
    engine: str  # "loop", "vmap" or "native"


def train(
    model: nn.Module,
    clients: Sequence[Any],
    algorithm: Algorithm,
    *,
    rounds: int,
    local_steps: int = 10,
    batch_size: BatchSize = 50,
    loss: Loss = F.cross_entropy,
    test: Any = None,
    validation: Any = None,
    metrics: Mapping[str, Metric] | None = None,
    output: str = "last",
    seed: int = 0,
    engine: str = "auto",
    weights: str | Sequence[float] = "uniform",
    participation: Participation = 1.0,
    failure: float = 0.0,
    opening_batch_size: BatchSize | None = None,
    clip: float | None = None,
    weight_decay: float = 0.0,
    eval_every: int = 1,
    device: torch.device | str | None = None,
    workers: int | None = None,
    threads: int = 1,
) -> Result:
    """Train `model` over `clients` with `algorithm`, and return the trained copy.

    clients: for each client a Dataset or a tuple of tensors (inputs, targets).
    loss, metrics: functions of (outputs, targets), means over the batch. Labels that are the loss's
        `ignore_index` take no part in any mean, and a batch of nothing else has a gradient of zero
        and no loss. What can be known of a loss's labels: `help(fafed.labels)`.
    batch_size: examples per local step, or "full" for the client's whole data, in order.
    output: "last", "random_round" (what theorems speak of), or "best_val" (lowest validation loss).
    engine: "loop", "vmap", "native" (in C), or "auto"; the results agree up to rounding.
    weights: "uniform", "examples" (by the amount of data), or a number per client.
    participation, failure: see `fafed.cohort.Cohort`.
    opening_batch_size: the batch of the first estimate (FAFED, STEM); local_steps * batch_size.
    clip, weight_decay: of each gradient: bound on its norm, and multiple of x added to it.
    workers: threads that clients, and batches to measure on, are shared among, one per core if
        None; no digit depends on it.
    threads: of torch in each worker; last digits may depend on it.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be an nn.Module, got {type(model).__name__}")
    if not callable(loss):
        raise ConfigError(f"loss must be a function of (outputs, targets), got {loss!r}")
    if output not in ("last", "random_round", "best_val"):
        raise ConfigError(f"output must be 'last', 'random_round' or 'best_val', got {output!r}")
    if output == "best_val" and validation is None:
        raise ConfigError("output='best_val' needs data to choose by: give validation=")
    if opening_batch_size is None and isinstance(batch_size, int) and isinstance(local_steps, int):
        opening_batch_size = batch_size * local_steps
    source = examples_of(clients, batch_size=batch_size, anchor_size=opening_batch_size, seed=seed)
    objective = objectives.Model(model, loss, clip=clip, weight_decay=weight_decay, device=device)
    held_out = {
        part: partial(chunks, as_tensors(data, part))
        for part, data in (("test", test), ("validation", validation))
        if data is not None
    }
    run = build(
        algorithm,
        objective,
        source,
        rounds=rounds,
        local_steps=local_steps,
        seed=seed,
        engine=engine,
        weights=weights,
        participation=participation,
        failure=failure,
        measure=measuring(objective, held_out, metrics or {}, workers=workers, threads=threads),
        measure_every=eval_every,
        workers=workers,
        threads=threads,
    )
    check_measured(held_out, objective.classes, source.pool, objective.averaged.ignored)
    history, chosen, lowest = History(), run.state, math.inf
    try:
        for record in run:
            history.append(record)
            if output == "random_round":  # each round so far is kept with the same probability
                draw = randomness.uniform(randomness.keys("output", seed, record.round))
                better = float(draw) * record.round < 1
            elif output == "best_val":
                better = bool(record.validation) and record.validation["loss"] < lowest
                lowest = record.validation["loss"] if better else lowest
            else:
                better = True
            chosen = run.state if better else chosen
    except Diverged as error:
        error.history = history
        raise
    assert isinstance(run.engine, Simulation)
    return Result(
        model=objective.predict(chosen.shared.x, chosen.buffers),
        x=chosen.shared.x,
        history=history,
        engine=run.engine.engine,
    )


def build(
    algorithm: Algorithm,
    objective: objectives.Model | objectives.Function,
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
    """A run in simulation, or on several ranks, checked: whatever cannot work is refused here, not
    in round 300."""
    if not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm must be an object such as fafed.FAFED(eta=0.01), got {algorithm!r}"
        )
    source = source.to(objective.x0.device, getattr(objective, "dtype", objective.x0.dtype))
    if isinstance(objective, objectives.Model):
        (batch,) = ClientBatches(source.gather, source.draw(("round",), 0, 0, 1))
        objective.probe(batch)
        everyone, ignored = range(len(source.examples)), objective.averaged.ignored
        check_labels(source, everyone, objective.classes, ignored)
    algorithm = algorithm.fitted(objective.sizes)
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
