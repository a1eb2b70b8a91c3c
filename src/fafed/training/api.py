"""`fafed.train`: the function that most users call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fafed.core import randomness
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.records import History
from fafed.core.schedules import Rate
from fafed.data.checks import check_measured
from fafed.data.loading import open_data, steps_of_round
from fafed.data.sources.examples import BatchSize
from fafed.data.sources.reader import Loading
from fafed.errors import ConfigError
from fafed.objectives import module as objectives
from fafed.objectives.base import Loss, Metric
from fafed.privacy.options import Privacy
from fafed.training.build import build
from fafed.training.cohort import Participation
from fafed.training.evaluation import chunked, evaluator, personal
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
    local_steps: int | None = None,
    local_epochs: float | None = None,
    batch_size: BatchSize = 50,
    loss: Loss | str = F.cross_entropy,
    test: object = None,
    validation: object = None,
    client_test: float | Sequence[object] | None = None,
    personalise: int = 0,
    personalise_eta: Rate | None = None,
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
    sam: float = 0.0,
    eval_every: int = 1,
    eval_batch_size: int | None = None,
    baseline: str | None = None,
    device: torch.device | str | None = None,
    workers: int | None = None,
    threads: int = 1,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    data_workers: int = 1,
    data_processes: bool = False,
    cache: int | str | None = None,
    data_device: torch.device | str | None = None,
    privacy: Privacy | None = None,
) -> Result:
    """Train `model` over `clients` with `algorithm`, and return the trained copy.

    clients: for each client a Dataset, a tuple of tensors (inputs, targets), or a mapping of names
        to tensors such as {"input_ids": ..., "labels": ...}. Tensors stay in memory. A Dataset is
        read batch by batch (docs/data.md).
    loss: a function of (outputs, targets), the mean over the batch. If the data are mappings: a
        function of (output, batch), or "model" for the loss that the model returns. Labels that
        equal its `ignore_index` do not count in any mean. A batch without other labels has a
        gradient of zero and no loss. For the details see `help("fafed.objectives.labels")`.
    metrics: functions of (outputs, targets) of the whole test set, objects with update, compute
        and reset (torchmetrics), or functions marked with `fafed.metrics.mean`: see
        `help("fafed.metrics")`.
    client_test: test data of each client: a list, or a share of each client's data that is held
        out, such as 0.2. Records then have `clients_test`: mean, spread and worst over the clients.
    personalise: also measure each client on its test data after so many SGD steps of its own from
        the server's model, with the step size `personalise_eta` (None: the algorithm's eta).
    eval_batch_size: examples in one forward pass of an evaluation: 1000, or 50 for mappings and
        for a Dataset that is read batch by batch.
    local_steps: the number of local steps in a round. The default is 10.
    local_epochs: in place of local_steps. Every client makes the same number of steps: the epochs
        times the mean number of examples of a client, divided by the batch size, rounded up.
    batch_size: examples per local step, or "full" for the client's whole data, in order.
    output: which model to return: "last", "random_round" (as in theorems), or "best_val" (lowest
        validation loss).
    engine: the back end: "loop", "vmap", "native" (C), or "auto". Results agree up to rounding.
    weights: "uniform", "examples" (by the amount of data), or a number per client.
    participation, failure: see `fafed.training.cohort.Cohort`.
    opening_batch_size: the batch size of the first estimate (FAFED, STEM). The default is
        local_steps * batch_size.
    clip: the bound on the norm of each gradient. weight_decay: the multiple of x added to it.
    sam: above 0, gradients are sharpness-aware with this radius, at twice the cost: FedAvg is then
        FedSAM, FedCM MoFedSAM, and SCAFFOLD FedGamma.
    baseline: "local" (every client trains alone) or "pooled" (one client has all data), to compare
        with: see `help("fafed.training.baselines")`.
    workers: the number of threads for clients and for evaluation; None: one per core. No digit
        depends on it.
    threads: the number of torch threads in each worker. The last digits may depend on it.
    collate_fn: a function that makes a batch of a list of a Dataset's items; None: stack them.
    data_workers, data_processes: how many threads, or processes, read a Dataset ahead. With 0, a
        batch is read when it is needed. No digit depends on it.
    cache: bytes for items of a Dataset, such as "1GB". Only for items that are always the same.
    data_device: where tensors are held. None: on the model's device up to 1 GiB, else on the CPU.
    privacy: `fafed.Privacy(...)`; see `help(fafed.Privacy)`.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be an nn.Module, got {type(model).__name__}")
    if output not in ("last", "random_round", "best_val"):
        raise ConfigError(f"output must be 'last', 'random_round' or 'best_val', got {output!r}")
    if output == "best_val" and validation is None:
        raise ConfigError("output='best_val' needs data to choose by: give validation=")
    source, held_out, own_tests = open_data(
        clients,
        {"test": test, "validation": validation},
        client_test=client_test,
        loading=Loading(collate_fn, data_workers, data_processes, cache, data_device),
        batch_size=batch_size,
        anchor_size=opening_batch_size,
        seed=seed,
    )
    steps = steps_of_round(local_steps, local_epochs, batch_size, source.examples)
    if opening_batch_size is None and isinstance(batch_size, int) and isinstance(steps, int):
        source.anchor_size = batch_size * steps
    objective = objectives.Model(
        model, loss, clip=clip, weight_decay=weight_decay, sam=sam, device=device
    )
    measure = evaluator(
        objective,
        {part: chunked(data, eval_batch_size) for part, data in held_out.items()},
        metrics or {},
        clients=[chunked(data, eval_batch_size) for data in own_tests],
        personal=personal(
            algorithm,
            source,
            own_tests,
            personalise,
            personalise_eta,
            seed,
            rounds=rounds,
            local_steps=steps,
        ),
        workers=workers,
        threads=threads,
    )
    run = build(
        algorithm,
        objective,
        source,
        rounds=rounds,
        local_steps=steps,
        seed=seed,
        engine=engine,
        weights=weights,
        participation=participation,
        failure=failure,
        measure=measure,
        measure_every=eval_every,
        workers=workers,
        threads=threads,
        privacy=privacy,
        baseline=baseline,
    )
    if measure is not None:
        check_measured(measure.all_parts(), objective.classes, source, objective.averaged.ignored)
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
