"""`fafed.start` and `fafed.train`: the functions that most users call.

They are not in `training`, because a run may have a folder, and folders belong to `experiments`.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from fafed.core.algorithm import AnyAlgorithm
from fafed.core.arguments import checked_all
from fafed.core.schedules import Rate
from fafed.core.wire import Wire
from fafed.core.words import named
from fafed.data.checks import check_measured
from fafed.data.loading import open_data, steps_of_round
from fafed.data.sources.examples import BatchSize
from fafed.data.sources.reader import Loading
from fafed.errors import ConfigError
from fafed.experiments import python_run
from fafed.experiments.assemble import Prepared, counted
from fafed.experiments.execute import OnRecord
from fafed.experiments.folder import Memory
from fafed.experiments.rundir import RunDir
from fafed.experiments.trackers import check_tracker
from fafed.experiments.training import Result, Training
from fafed.objectives import module as objectives
from fafed.objectives.base import Loss, Metric
from fafed.privacy.options import Privacy
from fafed.training.build import build, check_algorithm
from fafed.training.cohort import Participation
from fafed.training.evaluation import chunked, evaluator, personal
from fafed.training.output import Output

log = logging.getLogger("fafed")
P = ParamSpec("P")
R = TypeVar("R")


@named()
def start(
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
    privacy: Privacy | None = None,
    wire: Wire | None = None,
    eval_every: int = 1,
    eval_batch_size: int | None = None,
    baseline: str | None = None,
    device: torch.device | str | None = None,
    amp: str | None = None,
    workers: int | None = None,
    threads: int = 1,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    data_workers: int = 1,
    data_processes: bool = False,
    cache: int | str | None = None,
    data_device: torch.device | str | None = None,
    folder: str | Path | None = None,
    checkpoint_every: int = 1,
    track: str | Sequence[str] = (),
    on_record: OnRecord | Sequence[OnRecord] = (),
    quiet: bool = False,
) -> Training:
    """Start to train `model` over `clients` with `algorithm`. The loop over the rounds is yours.

        run = fafed.start(model, clients, fafed.FedAvg(eta=0.1), rounds=100, folder="runs/mine")
        for record in run:                          # a record per round
            if record.test["accuracy"] > 0.9:
                break                               # stops early; another loop over `run` goes on
        run.model, run.x, run.history, run.engine   # at any time, also within the loop
        run.save("model.safetensors")

    `fafed.train` takes the same arguments and runs to the end.

    Arguments

    model: an nn.Module. It is not changed: a copy is trained.
    clients: for each client a Dataset, a tuple of tensors (inputs, targets), or a mapping of names
        to tensors such as {"input_ids": ..., "labels": ...}. Tensors stay in memory. A Dataset is
        read batch by batch (docs/data.md).
    algorithm: an object such as fafed.FedAvg(eta=0.1). `fafed algorithms` lists them.
    rounds: how many rounds there are in all, with those that a folder already has.
    local_steps: steps that each client makes in a round. The default is 10.
    local_epochs: in place of local_steps. Every client makes the same number of steps: the epochs
        times the mean number of examples of a client, divided by the batch size, rounded up.
    batch_size: examples per local step, or "full" for the client's whole data, in order.
    loss: a function of (outputs, targets), the mean over the batch. If the data are mappings: a
        function of (output, batch), or "model" for the loss that the model returns. Labels that
        equal its `ignore_index` do not count in any mean. A batch without other labels has a
        gradient of zero and no loss. For the details see `help("fafed.objectives.labels")`.
    test, validation: data like a client's. The server's model is evaluated on them.
    client_test: test data of each client: a list, or a share of each client's data that is held
        out, such as 0.2. Records then have `clients_test`: mean, spread and worst over the clients.
    personalise: also measure each client on its test data after so many SGD steps of its own from
        the server's model, with the step size `personalise_eta` (None: the algorithm's eta).
    metrics: name -> a function of (outputs, targets) of the whole test set, an object with update,
        compute and reset (torchmetrics), or a function marked with `fafed.metrics.mean`: see
        `help("fafed.metrics")`.
    output: which model to return: "last", "random_round" (as in theorems), or "best_val" (lowest
        validation loss).
    seed: decides every random number: batches, dropout, which clients take part. Not the model's
        initial values: those are the model's own.
    engine: the back end: "loop", "vmap", "native" (C), or "auto". Results agree up to rounding.
    weights: the weight of each client in the mean. "uniform", the default, gives all the same;
        "examples" weighs by the amount of data, as FedAvg's paper does; or a number per client.
    participation: which clients take part: a fraction that is drawn in each round, a list of client
        lists, or a function of the round.
    failure: the probability that a client fails in a round.
    opening_batch_size: the batch size of the first estimate (FAFED, STEM). The default is
        local_steps * batch_size.
    clip: the bound on the norm of each gradient. weight_decay: the multiple of x added to it.
    sam: above 0, gradients are sharpness-aware with this radius, at twice the cost: FedAvg is then
        FedSAM, FedCM MoFedSAM, and SCAFFOLD FedGamma.
    privacy: `fafed.Privacy(...)`; see `help(fafed.Privacy)`.
    wire: `fafed.Wire("int8")` compresses what clients send; see `help(fafed.Wire)`.
    eval_every: evaluate every so many rounds, and after the last one.
    eval_batch_size: examples in one forward pass of an evaluation: 1000, or 50 for mappings and
        for a Dataset that is read batch by batch.
    baseline: "local" (every client trains alone) or "pooled" (one client has all data), to compare
        with: see `help("fafed.training.baselines")`.
    device: where to compute; None: where the model is.
    amp: "bf16" for mixed precision (torch.autocast) in training and evaluation.
    workers: the number of threads for clients and for evaluation; None: one per core. No digit
        depends on it.
    threads: the number of torch threads in each worker. The last digits may depend on it.
    collate_fn: a function that makes a batch of a list of a Dataset's items; None: stack them.
    data_workers, data_processes: how many threads, or processes, read a Dataset ahead. With 0, a
        batch is read when it is needed. No digit depends on it.
    cache: bytes for items of a Dataset, such as "1GB". Only for items that are always the same.
    data_device: where tensors are held. None: on the model's device up to 1 GiB, else on the CPU.
    folder: where records and checkpoints are kept. The same call with the same folder goes on bit
        for bit, after a stop of any kind; `rounds` may be raised. None: nothing is written.
    checkpoint_every: rounds between two checkpoints in the folder.
    track: also send records to "tensorboard:DIR", "mlflow:URI" or "wandb:PROJECT", or several.
    on_record: a function that is called with each record, or several.
    quiet: show no progress. Without it a terminal and a notebook show a line.
    """
    given = checked_all(dict(locals()))
    batch_size, seed = given["batch_size"], given["seed"]
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be an nn.Module, got {type(model).__name__}")
    memory = Memory(Output(output, seed))
    if output == "best_val" and validation is None:
        raise ConfigError("output='best_val' needs data to choose by: give validation=")
    source, measured, own_tests = open_data(
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
        model, loss, clip=clip, weight_decay=weight_decay, sam=sam, device=device, amp=amp
    )
    held_out = {part: chunked(data, eval_batch_size) for part, data in measured.items()}
    of_clients = [chunked(data, eval_batch_size) for data in own_tests]
    measure = evaluator(
        objective,
        held_out,
        metrics or {},
        clients=of_clients,
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
    if metrics and measure is None:
        log.warning("metrics are not computed: give data for them, test= or client_test=")

    def prepare(engine: str) -> Prepared:
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
            wire=wire,
            baseline=baseline,
        )
        if measure is not None:
            ignored = objective.averaged.ignored
            parts = measure.all_parts()
            check_measured(parts, objective.classes, source, ignored, objective.usable)
            measure.check()
        return Prepared(run, objective, counted(source, held_out, of_clients))

    tracks: list[str] = _several("track", track, str, "a text such as 'mlflow:URI'")
    for spec in tracks:
        check_tracker(spec)
    calls: list[OnRecord] = _several("on_record", on_record, Callable, "a function of a record")
    check_algorithm(algorithm)
    return Training(
        prepare,
        engine,
        memory,
        None if folder is None else RunDir(Path(folder)),
        partial(python_run.describe, given, source, objective, measured, own_tests),
        tracks,
        calls,
        quiet=quiet,
    )


def _several(name: str, given: object, kind: Any, what: str) -> list[Any]:
    """One thing or several of this kind, as a list."""
    found = [given] if isinstance(given, kind) or not isinstance(given, Sequence) else list(given)
    for one in found:
        if not isinstance(one, kind):
            raise ConfigError(f"{name} must be {what}, or a list of these, got {one!r}")
    return found


def _same_arguments(like: Callable[P, object]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """A function that takes the arguments of `like`, whose docstring explains them."""

    def mark(function: Callable[..., R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            return function(*args, **options)

        ours, theirs = inspect.signature(function), inspect.signature(like)
        call.__signature__ = theirs.replace(  # type: ignore[attr-defined]
            return_annotation=ours.return_annotation
        )
        _, heading, arguments = (like.__doc__ or "").partition("    Arguments\n")
        call.__doc__ = f"{function.__doc__}\n{heading}{arguments}"
        return call

    return mark


@named()
@_same_arguments(start)
def train(*args: Any, **options: Any) -> Result:
    """Train `model` over `clients` with `algorithm`, and return the trained copy.

        result = fafed.train(model, clients, fafed.FedAvg(eta=0.1), rounds=100)
        result.model, result.x, result.history

    Ctrl-C returns what is finished, with result.finished == False. A second Ctrl-C raises. A loop
    of your own, which can stop early, is `fafed.start` with the same arguments.
    """
    run = start(*args, **options)
    try:
        for _ in run:
            pass
    except KeyboardInterrupt:
        if run.impatient:
            raise
        log.warning("interrupted: %r", run)
    return run.result()
