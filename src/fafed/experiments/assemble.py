"""Make a run from an experiment: data, partition, model, objective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch.nn import functional as F

from fafed import data as datasets
from fafed import models
from fafed.core import plugins, randomness
from fafed.core.batch import labels_of
from fafed.data import partition
from fafed.data.checks import check_measured
from fafed.data.client_test import without_client_test
from fafed.data.loading import open_data, steps_of_round
from fafed.data.normalise import Normalisation, inputs_of, normalised, shared
from fafed.data.sources.base import Indices, Source
from fafed.data.sources.examples import Examples
from fafed.data.sources.lazy import Lazy
from fafed.data.sources.reader import Loading
from fafed.data.sources.streams import Streams, passage
from fafed.data.sources.tensors import Columns, as_tensors
from fafed.engines.ranks import Ranks
from fafed.errors import ConfigError, DataError, nearest
from fafed.experiments import model_options
from fafed.experiments.config import Experiment
from fafed.files import Json
from fafed.objectives.base import Loss, Metric
from fafed.objectives.batches import MODEL, mean_squared_error
from fafed.objectives.metrics import METRICS
from fafed.objectives.module import Model
from fafed.training.build import build
from fafed.training.evaluation import Part, Parts, chunked, evaluator, personal
from fafed.training.loop import Run

T = TypeVar("T")
LOSSES: dict[str, Loss | str] = {
    MODEL: MODEL,
    "cross_entropy": F.cross_entropy,
    "token_cross_entropy": models.token_cross_entropy,
    "mse": mean_squared_error,
}


class Shards(NamedTuple):
    """The data of an experiment: what the clients draw from, and what evaluation uses."""

    source: Source
    measured: Parts
    counts: list[list[int]] | None  # clients x classes
    classes: list[str] | None
    text: bool
    client_test: tuple[Part, ...] = ()  # of each client, if there is such data
    normalisation: Normalisation | None = None  # of the inputs, which are normalised already


class Prepared(NamedTuple):
    run: Run
    objective: Model
    shards: Shards
    options: Mapping[str, Json] = MappingProxyType({})  # of the model, as the data has them


def prepare(
    experiment: Experiment,
    engine: str | None = None,
    ranks: Ranks | None = None,
    *,
    workers: int | None = None,
) -> Prepared:
    """Load and check everything for the first round. Of several ranks, only rank 0 evaluates."""
    threads = experiment.threads
    torch.set_num_threads(threads)
    shards = shard(experiment)
    experiment = with_steps(experiment, shards.source)
    found = options_from_data(experiment, shards)
    experiment = model_options.with_options(experiment, found)
    model_options.check_inputs(experiment, shards.source)
    device = ranks.device(experiment.device) if ranks else experiment.device
    goal = model(experiment, text=shards.text, device=device)
    leads = ranks is None or ranks.rank == 0
    algorithm = experiment.algorithm_object(shards.source.epoch_steps)
    measure = evaluator(
        goal,
        shards.measured if leads else {},
        chosen(experiment, text=shards.text),
        clients=shards.client_test if leads else (),
        personal=personal(
            algorithm,
            shards.source,
            shards.client_test,
            experiment.personalise,
            experiment.personalise_eta,
            experiment.seed,
            rounds=experiment.rounds,
            local_steps=experiment.local_steps,
        ),
        workers=workers,
        threads=threads,
    )
    run = build(
        algorithm,
        goal,
        shards.source,
        rounds=experiment.rounds,
        local_steps=experiment.local_steps,
        seed=experiment.seed,
        engine=engine or experiment.engine,
        weights=experiment.weights,
        participation=experiment.participation,
        failure=experiment.failure,
        measure=measure,
        measure_every=experiment.eval_every,
        workers=workers,
        threads=threads,
        ranks=ranks,
        privacy=experiment.privacy_options(),
        wire=experiment.wire_options(),
        baseline=experiment.baseline,
    )
    if measure is not None:
        if not shards.text:
            ignored = goal.averaged.ignored
            parts = measure.all_parts()
            check_measured(parts, goal.classes, shards.source, ignored, goal.usable)
        measure.check()
    return Prepared(run, goal, shards, found)


def options_from_data(experiment: Experiment, shards: Shards) -> dict[str, Json]:
    """The sizes of the model that the experiment leaves to the data."""
    if not model_options.missing(experiment):
        return {}
    named = experiment.data.name is not None and shards.classes is not None
    measured = {name: part() for name, part in shards.measured.items() if name == "test"}
    count = len(shards.classes) if named and shards.classes else None
    return model_options.found(experiment, shards.source, measured, count)


def with_steps(experiment: Experiment, source: Source) -> Experiment:
    """The experiment with `local_steps` in place of `local_epochs`."""
    epochs = experiment.local_epochs
    if epochs is None:
        return experiment
    if isinstance(source, Streams):  # a text: a pass over it has this number of steps
        steps = max(1, math.ceil(epochs * source.epoch_steps))
    else:
        steps = steps_of_round(None, epochs, experiment.batch_size, source.examples)
    found = experiment.model_copy(update={"local_steps": steps, "local_epochs": None})
    if isinstance(source, Examples | Lazy | Streams):
        source.anchor_size = sizes(found)["anchor_size"] or source.batch_size
    return found


def model(experiment: Experiment, *, text: bool, device: str | None = None) -> Model:
    """The experiment's model and loss, before the first round."""
    return Model(
        models.build(experiment.model.name, seed=experiment.seed, **experiment.model.options),
        _loss(experiment.loss, text),
        clip=experiment.clip,
        weight_decay=experiment.weight_decay,
        sam=experiment.sam,
        device=device or experiment.device,
        amp=experiment.amp,
    )


def chosen(experiment: Experiment, *, text: bool) -> dict[str, Metric]:
    """The experiment's metrics."""
    return {name: _metric(name) for name in experiment.metric_names(text=text)}


def shard(experiment: Experiment, normalisation: Normalisation | None = None) -> Shards:
    """Load the data and deal it out. `normalisation`: that of the run, if it is known already."""
    wanted = experiment.data
    rules = datasets.Table.from_dict(wanted.table)
    if wanted.function is not None:
        own = datasets.from_function(wanted.function, **wanted.options)
        return _own(experiment, own, rules, normalisation)
    if wanted.folder is not None:
        own = datasets.from_folder(wanted.folder, rules)
        return _own(experiment, own, rules, normalisation)
    assert wanted.name is not None
    loaded = _loaded(wanted.name)
    assert not isinstance(loaded, datasets.Tables)  # `Experiment.check` refuses them
    if isinstance(loaded, datasets.Text):
        return _text(experiment, loaded)
    if wanted.words is not None or wanted.tokens is not None:
        raise ConfigError(
            f"data.words and data.tokens are for a text, {wanted.name} has images: leave them out"
        )
    return _images(experiment, loaded)


@lru_cache(maxsize=2)  # the runs of a comparison share their data
def _loaded(name: str) -> datasets.Images | datasets.Text | datasets.Tables:
    return datasets.load(name)


def _images(experiment: Experiment, images: datasets.Images) -> Shards:
    wanted = experiment.data
    labels = images.train[1].numpy()
    kept, held = held_out(len(labels), wanted.validation, experiment.seed)
    how = partition.build(dataset=wanted.name, **wanted.partition)
    parts = [kept[p] for p in how.split(labels[kept], wanted.clients, experiment.seed)]
    source, tests = without_client_test(
        Examples(images.train, parts, **sizes(experiment)),
        wanted.client_test or None,
        experiment.seed,
    )
    parts, chunks = source.parts, partial(chunked, size=experiment.eval_batch_size)
    measured = {"test": chunks(images.test)} | _sampled(experiment, source)
    if len(held):
        measured["validation"] = chunks(source.part(held))
    counts = datasets.counts(labels, parts, len(images.classes)).tolist()
    classes = list(images.classes)
    return Shards(source, measured, counts, classes, False, tuple(map(chunks, tests)))


def _text(experiment: Experiment, text: datasets.Text) -> Shards:
    wanted = experiment.data
    if wanted.client_test:
        raise ConfigError(
            f"data.client_test = {wanted.client_test}: a text is read from its beginning to its "
            "end, so no share of it can be held out; set it to 0"
        )
    if wanted.words is not None:
        text = text.with_words(wanted.words)
    model_options.check_vocabulary(experiment, len(text.vocabulary))
    how = partition.build("contiguous")
    train = text.train[: wanted.tokens]
    parts = how.split(np.arange(len(train)), wanted.clients, experiment.seed)
    source = Streams(train, parts, bptt=wanted.bptt, **sizes(experiment))
    measured = {
        "test": lambda: passage(text.test, bptt=wanted.bptt),
        "validation": lambda: passage(text.valid, bptt=wanted.bptt),
    }
    return Shards(source, measured, None, None, text=True)


def _own(
    experiment: Experiment,
    own: datasets.Own,
    rules: datasets.Table,
    normalisation: Normalisation | None,
) -> Shards:
    loading, chunks = _loading(experiment), partial(chunked, size=experiment.eval_batch_size)
    source, opened, _ = open_data(
        own.clients, {"test": own.test}, loading=loading, **sizes(experiment)
    )
    if experiment.data.normalise:
        if normalisation is None:  # over all rows, before any are held out
            normalisation = shared(inputs_of(source), source.parts, rules.numbers())
        source = normalised(source, normalisation)
        opened = {part: _tested(data, normalisation) for part, data in opened.items()}
    measured = {part: chunks(data) for part, data in opened.items()}
    if experiment.data.validation:
        kept = [
            held_out(n, experiment.data.validation, experiment.seed + i)
            for i, n in enumerate(source.examples)
        ]
        held = np.concatenate([p[h] for p, (_, h) in zip(source.parts, kept, strict=True)])
        parts = [p[k] for p, (k, _) in zip(source.parts, kept, strict=True)]
        if not len(held):
            raise DataError(
                f"data.validation = {experiment.data.validation} holds out no example of clients "
                f"with at most {max(source.examples)}: hold out more, or set it to 0"
            )
        source = source.with_parts(parts)
        measured["validation"] = chunks(source.part(held))
    source, tests = without_client_test(
        source, experiment.data.client_test or None, experiment.seed
    )
    own_tests = tuple(map(chunks, tests))
    measured |= _sampled(experiment, source)
    found = counted(source, measured, own_tests)
    return found._replace(normalisation=normalisation)


def _tested(data: object, how: Normalisation) -> Columns:
    """Data for evaluation with normalised inputs."""
    inputs, *rest = as_tensors(data, "the test data")
    return (how.apply(inputs), *rest)  # type: ignore[arg-type]


def counted(source: Examples | Lazy, measured: Parts, client_test: Sequence[Part] = ()) -> Shards:
    """A user's own data. If the targets are class numbers, their counts are for the report."""
    labels = labels_of(source.pool) if isinstance(source, Examples) else None
    own = tuple(client_test)
    if (
        labels is None
        or labels.is_floating_point()
        or labels.ndim != 1
        or not len(labels)
        or int(labels.min()) < 0
    ):
        return Shards(source, measured, None, None, False, own)
    classes = int(labels.max()) + 1
    counts = datasets.counts(labels.cpu().numpy(), source.parts, classes).tolist()
    return Shards(source, measured, counts, [str(i) for i in range(classes)], False, own)


def held_out(n: int, share: float, seed: int) -> tuple[Indices, Indices]:
    """Rows for training and rows to hold out. Both are sorted and depend on the seed."""
    order = randomness.permutations(randomness.keys("validation", seed), n)
    count = int(share * n)
    return np.sort(order[count:]), np.sort(order[:count])


def _sampled(experiment: Experiment, source: Examples | Lazy) -> dict[str, Part]:
    """Some of the clients' examples. The loss of the server's model on them is the training loss.
    The mean loss of the clients' own steps is another number if their data differ."""
    used = np.concatenate(source.parts)
    count = min(experiment.data.train_sample, len(used))
    if not count:
        return {}
    order = randomness.permutations(randomness.keys("train sample", experiment.seed), len(used))
    rows = source.part(np.sort(used[order[:count]]))
    return {"train": chunked(rows, experiment.eval_batch_size)}


def _loading(experiment: Experiment) -> Loading:
    """How the user's own Datasets are read."""
    wanted = experiment.data
    collate = None if wanted.collate is None else plugins.find(wanted.collate, "data.collate")
    return Loading(collate, wanted.workers, wanted.processes, wanted.cache, wanted.device)


def sizes(experiment: Experiment) -> dict[str, Any]:
    """How many examples are drawn, and with which seed."""
    b, anchor = experiment.batch_size, experiment.opening_batch_size
    if anchor is None and isinstance(b, int):
        anchor = b * experiment.local_steps
    return {"batch_size": b, "anchor_size": anchor, "seed": experiment.seed}


def _loss(name: str, text: bool) -> Loss | str:
    if name == "auto":
        name = "token_cross_entropy" if text else "cross_entropy"
    return _named(name, LOSSES, "loss")


def _metric(name: str) -> Metric:
    return _named(name, METRICS, "metrics")


def _named(name: str, known: Mapping[str, T], what: str) -> T:
    if ":" in name:
        found: T = plugins.find(name, what)
        return found
    if name not in known:
        raise ConfigError(
            f"{what}: nothing is called {name!r}; {nearest(name, known)}; "
            "your own is 'module:function'"
        )
    return known[name]
