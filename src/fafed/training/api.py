"""`fafed.train`: the function that most users call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fafed.core import randomness
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.records import History
from fafed.data.checks import check_measured
from fafed.data.client_test import without_client_test
from fafed.data.sources.examples import BatchSize, as_tensors, examples_of
from fafed.errors import ConfigError
from fafed.objectives import module as objectives
from fafed.objectives.base import Loss, Metric
from fafed.training.build import build
from fafed.training.cohort import Participation
from fafed.training.evaluation import chunked, evaluator
from fafed.training.loop import Diverged


@dataclass(frozen=True)
class Result:
    """A finished training."""

    model: nn.Module  # the trained copy, in eval mode; the module passed in is unchanged
    x: Tensor  # its flat vector
    history: History
    engine: str  # "loop", "vmap" or "native"


def train(
    model: nn.Module,
    clients: Sequence[object],
    algorithm: AnyAlgorithm,
    *,
    rounds: int,
    local_steps: int = 10,
    batch_size: BatchSize = 50,
    loss: Loss | str = F.cross_entropy,
    test: object = None,
    validation: object = None,
    client_test: float | Sequence[object] | None = None,
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
    eval_batch_size: int | None = None,
    device: torch.device | str | None = None,
    amp: str | None = None,
    workers: int | None = None,
    threads: int = 1,
) -> Result:
    """Train `model` over `clients` with `algorithm`, and return the trained copy.

    clients: for each client a Dataset, a tuple of tensors (inputs, targets), or a mapping of names
        to tensors such as {"input_ids": ..., "labels": ...}.
    loss: a function of (outputs, targets), the mean over the batch. If the data are mappings: a
        function of (output, batch), or "model" for the loss that the model returns. Labels that
        equal its `ignore_index` do not count in any mean. A batch without other labels has a
        gradient of zero and no loss. For the details see `help("fafed.objectives.labels")`.
    metrics: functions of (outputs, targets) of the whole test set, objects with update, compute
        and reset (torchmetrics), or functions marked with `fafed.metrics.mean`: see
        `help("fafed.metrics")`.
    client_test: test data of each client: a list, or a share of each client's data that is held
        out, such as 0.2. Records then have `clients_test`: mean, spread and worst over the clients.
    eval_batch_size: examples in one forward pass of an evaluation: 1000, or 50 for mappings.
    batch_size: examples per local step, or "full" for the client's whole data, in order.
    output: which model to return: "last", "random_round" (as in theorems), or "best_val" (lowest
        validation loss).
    engine: the back end: "loop", "vmap", "native" (C), or "auto". Results agree up to rounding.
    weights: "uniform", "examples" (by the amount of data), or a number per client.
    participation, failure: see `fafed.training.cohort.Cohort`.
    opening_batch_size: the batch size of the first estimate (FAFED, STEM). The default is
        local_steps * batch_size.
    clip: the bound on the norm of each gradient. weight_decay: the multiple of x added to it.
    amp: "bf16" for mixed precision (torch.autocast) in training and evaluation.
    workers: the number of threads for clients and for evaluation; None: one per core. No digit
        depends on it.
    threads: the number of torch threads in each worker. The last digits may depend on it.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be an nn.Module, got {type(model).__name__}")
    if output not in ("last", "random_round", "best_val"):
        raise ConfigError(f"output must be 'last', 'random_round' or 'best_val', got {output!r}")
    if output == "best_val" and validation is None:
        raise ConfigError("output='best_val' needs data to choose by: give validation=")
    if opening_batch_size is None and isinstance(batch_size, int) and isinstance(local_steps, int):
        opening_batch_size = batch_size * local_steps
    source = examples_of(clients, batch_size=batch_size, anchor_size=opening_batch_size, seed=seed)
    source, own_tests = without_client_test(source, client_test, seed)
    objective = objectives.Model(
        model, loss, clip=clip, weight_decay=weight_decay, device=device, amp=amp
    )
    held_out = {
        part: chunked(as_tensors(data, part), eval_batch_size)
        for part, data in (("test", test), ("validation", validation))
        if data is not None
    }
    measure = evaluator(
        objective,
        held_out,
        metrics or {},
        clients=[chunked(data, eval_batch_size) for data in own_tests],
        workers=workers,
        threads=threads,
    )
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
        measure=measure,
        measure_every=eval_every,
        workers=workers,
        threads=threads,
    )
    if measure is not None:
        check_measured(
            measure.all_parts(), objective.classes, source.pool, objective.averaged.ignored
        )
        measure.check()
    history, chosen, lowest = History(), run.state, math.inf
    try:
        for record in run:
            history.append(record)
            if output == "random_round":  # every round so far has the same probability
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
    return Result(
        model=objective.predict(chosen.shared.x, chosen.buffers),
        x=chosen.shared.x,
        history=history,
        engine=run.engine.name,
    )
