"""Options of a model that follow from the data: how many numbers an example has, and how many
classes there are.

They are found for fafed's own models that take `inputs` and `outputs`, if the experiment does not
give them. The experiment stays as it was written, so it is still the same run. What was found is in
`environment.json` of the run. The silos' data is seen by the silos alone, so a run over silos must
give these options.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from fafed import models
from fafed.core.batch import Batch, labels_of
from fafed.data.checks import check_labels
from fafed.data.sources.base import Source
from fafed.data.sources.examples import Examples
from fafed.errors import ConfigError, DataError
from fafed.experiments.config import Experiment
from fafed.files import Json

SIZES = ("inputs", "outputs")


def missing(experiment: Experiment) -> list[str]:
    """The sizes that the model takes and the experiment does not give."""
    kind = models.MODELS.get(experiment.model.name)
    takes = inspect.signature(kind).parameters if kind else {}
    return [name for name in SIZES if name in takes and name not in experiment.model.options]


def found(
    experiment: Experiment,
    source: object,
    measured: Mapping[str, Iterable[Batch]] | None = None,
    classes: int | None = None,
) -> dict[str, Json]:
    """The missing sizes as the data has them. Those that are the model's defaults are left out.

    classes: the number of classes, if the data says it. Else the largest label counts.
    """
    wanted = missing(experiment)
    if not wanted or not isinstance(source, Examples) or not isinstance(source.pool, tuple | list):
        return {}
    sizes = {"inputs": _numbers(source.pool[0]), "outputs": classes}
    if classes is None and "outputs" in wanted:
        parts = [source.pool, *(batch.data for part in (measured or {}).values() for batch in part)]
        labels = [own for own in map(labels_of, parts) if own is not None]
        number = experiment.loss == "mse" and bool(labels) and labels[0].ndim == 1
        sizes["outputs"] = 1 if number else _outputs(labels)
    defaults = inspect.signature(models.MODELS[experiment.model.name]).parameters
    return {
        name: size
        for name in wanted
        if (size := sizes[name]) is not None and size != defaults[name].default
    }


def with_options(experiment: Experiment, options: Mapping[str, Any]) -> Experiment:
    """The experiment with these options of its model. It is for building the model: the run keeps
    the experiment as it was written."""
    if not options:
        return experiment
    model = experiment.model.model_copy(update=dict(options))
    return experiment.model_copy(update={"model": model})


def check_inputs(experiment: Experiment, source: object) -> None:
    """Refuse data whose examples have another size than the model takes."""
    kind = models.MODELS.get(experiment.model.name)
    if not isinstance(source, Examples) or not isinstance(source.pool, tuple | list) or not kind:
        return
    takes = inspect.signature(kind).parameters
    if "inputs" not in takes:
        return
    given = experiment.model.options.get("inputs", takes["inputs"].default)
    if type(given) is int and given != (has := _numbers(source.pool[0])):
        raise DataError(
            f"an example has {has} numbers, but the model {experiment.model.name!r} takes {given}: "
            f"set inputs = {has} in [model], or give other data",
            fault="inputs",
        )


def check_outputs(experiment: Experiment, source: Source, client: int) -> None:
    """Refuse a label that one of fafed's own models has no output for, before a loss fails on it
    with words of its own."""
    kind = models.MODELS.get(experiment.model.name)
    takes = inspect.signature(kind).parameters if kind else {}
    if "outputs" in takes and experiment.loss in ("auto", "cross_entropy"):
        given = experiment.model.options.get("outputs", takes["outputs"].default)
        if type(given) is int:
            check_labels(source, [client], given, None)


def check_vocabulary(experiment: Experiment, words: int) -> None:
    """Refuse a text with more words than one of fafed's own models has."""
    kind = models.MODELS.get(experiment.model.name)
    takes = inspect.signature(kind).parameters if kind else {}
    if "vocabulary" not in takes:
        return
    has = experiment.model.options.get("vocabulary", takes["vocabulary"].default)
    if type(has) is int and has < words:
        raise ConfigError(
            f"the text has {words} words, the model {experiment.model.name!r} {has}: set "
            f"vocabulary = {words} in [model], or words = {has} in [data] to keep the most frequent"
        )


def require_sizes(experiment: Experiment) -> None:
    """Refuse an experiment over silos whose model does not say what it takes."""
    if experiment.data.name is None and (names := missing(experiment)):
        raise ConfigError(
            f"the model {experiment.model.name!r} of {experiment.name} needs {' and '.join(names)} "
            "in [model]: silos do not show their data, so the server cannot count them. "
            "`fafed silos check` on a silo prints both"
        )


def _numbers(inputs: Tensor) -> int:
    return int(inputs[:1].numel())


def _outputs(labels: list[Tensor]) -> int | None:
    """One more than the largest class number, at least two; the width of targets that are rows."""
    first = labels[0] if labels else None
    if first is None or first.ndim > 2:
        return None
    if first.ndim == 2:
        return int(first.shape[1]) if first.is_floating_point() else None
    if first.is_floating_point():
        return None
    return max(2, 1 + max(int(own.max()) for own in labels))
