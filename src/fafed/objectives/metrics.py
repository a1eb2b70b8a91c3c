"""Metrics for `fafed.train(metrics=...)`: numbers about outputs and targets of a whole data set.

A metric is one of three things:

- A function of (outputs, targets) that returns one number. It is called once, on all outputs and
  all targets of the set. Both are on the CPU. If batches are mappings, it is a function of
  (outputs, batch).
- An object with `update(outputs, targets)`, `compute()` and `reset()`, such as those of
  torchmetrics. It sees the batches in order, and nothing is kept in memory. If batches are
  mappings, it gets (output, batch). One of torchmetrics then gets the logits and batch["labels"].
- A function that is marked with `fafed.metrics.mean`. It is called on each batch, and its results
  are averaged with the number of examples as weights. Nothing is kept in memory.

A function of one's own that is a mean over labels may have a parameter `ignore_index`. Its mean is
over all other labels (`fafed.objectives.labels`). The metrics here leave out the same labels as the
loss.

Higher is better if the metric has an attribute `higher_is_better` that says so, as in torchmetrics,
or else if its name has a word such as accuracy, auc, f1, precision, recall or score in it
(`fafed.core.records.HIGHER_IS_BETTER`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fafed.errors import ConfigError

IGNORED = -100  # the label that torch's cross entropy ignores
T = TypeVar("T", bound=Callable[..., Any])


def mean(function: T) -> T:
    """Mark a metric as a mean over the examples. It is then called on each batch."""
    return _marked(function, batch_mean=function)


def _marked(function: T, **marks: object) -> T:
    for name, value in marks.items():
        setattr(function, name, value)
    return function


@mean
def accuracy(outputs: Any, targets: Any, ignore_index: int = IGNORED) -> Tensor:
    """The share of labels whose class has the largest output; NaN if all labels are ignored.

    Outputs are (examples, classes), or (examples, classes, ...) for targets (examples, ...), as in
    F.cross_entropy, or have the classes last. `fafed.train` leaves out the labels that the loss
    ignores. Elsewhere, or if the loss has no such label, `ignore_index` is left out.
    """
    logits, labels, axis = _classes("accuracy", outputs, targets)
    return _share(logits.argmax(axis) == labels, labels != ignore_index)


@mean
def top5(outputs: Any, targets: Any, ignore_index: int = IGNORED) -> Tensor:
    """The share of labels whose class is among the five with the largest outputs."""
    logits, labels, axis = _classes("top5", outputs, targets)
    first = logits.topk(min(5, logits.shape[axis]), axis).indices
    return _share((first == labels.unsqueeze(axis)).any(axis), labels != ignore_index)


def _share(right: Tensor, kept: Tensor) -> Tensor:
    return (right & kept).sum().double() / kept.sum()


def _token_loss(outputs: Any, targets: Any, ignore_index: int = IGNORED) -> Tensor:
    outputs, targets, axis = _classes("perplexity", outputs, targets)
    return F.cross_entropy(outputs.movedim(axis, 1), targets, ignore_index=ignore_index)


def perplexity(outputs: Any, targets: Any, ignore_index: int = IGNORED) -> float:
    """exp of the mean cross entropy over all labels. Outputs are logits, shaped as for accuracy."""
    return _exp(float(_token_loss(outputs, targets, ignore_index)))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


_marked(perplexity, batch_mean=_token_loss, finish=_exp)


def f1(
    outputs: Any, targets: Any, ignore_index: int = IGNORED, positive: int | None = None
) -> float:
    """The F1 score: the mean over the classes, or that of the class `positive` alone.

    Outputs have one number per class, as for accuracy. A class that occurs neither in the targets
    nor among the predictions does not count. Outputs may also have one number per example, a logit:
    then the result is the F1 score of the class 1, which is predicted where the logit is above 0.
    """
    if _one_each(outputs, targets):
        outputs, targets, kept = _scores("f1", outputs, targets, ignore_index)
        predicted, targets = (outputs > 0)[kept].long(), targets[kept].long()
        classes = [1 if positive is None else positive]
    else:
        outputs, targets, axis = _classes("f1", outputs, targets)
        kept = targets != ignore_index
        predicted, targets = outputs.argmax(axis)[kept], targets[kept]
        classes = list(range(outputs.shape[axis])) if positive is None else [positive]
    found = []
    for label in classes:
        guessed, true = predicted == label, targets == label
        wrong = int((guessed != true).sum())
        right = int((guessed & true).sum())
        if right + wrong:
            found.append(2 * right / (2 * right + wrong))
    if not found:
        return math.nan if not len(targets) else 0.0
    return sum(found) / len(found)


def f1_binary(outputs: Any, targets: Any, ignore_index: int = IGNORED) -> float:
    """The F1 score of the class 1. Outputs have one logit per example, or one number per class."""
    return f1(outputs, targets, ignore_index, positive=1)


def auc(outputs: Any, targets: Any, ignore_index: int = IGNORED) -> float:
    """The area under the ROC curve, for targets 0 and 1. NaN if one of them does not occur.

    Outputs have one score per example, or two: then the score is the second minus the first. This
    is the probability that a 1 has a higher score than a 0, where equal scores count one half.
    """
    scores, targets, kept = _scores("auc", outputs, targets, ignore_index)
    scores, positive = scores[kept].double(), targets[kept] == 1
    n, p = len(scores), int(positive.sum())
    if p in (0, n):
        return math.nan
    _, place, count = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = count.cumsum(0).double()
    ranks = (ends - (count.double() - 1) / 2)[place]  # equal scores share their mean rank
    return (float(ranks[positive].sum()) - p * (p + 1) / 2) / (p * (n - p))


@mean
def mse(outputs: Any, targets: Any) -> Tensor:
    """The mean squared error."""
    found, true = _numbers("mse", outputs, targets)
    return (found - true).square().mean()


@mean
def mae(outputs: Any, targets: Any) -> Tensor:
    """The mean absolute error."""
    found, true = _numbers("mae", outputs, targets)
    return (found - true).abs().mean()


METRICS: dict[str, Callable[..., Tensor | float]] = {
    "accuracy": accuracy,
    "top5": top5,
    "f1": f1,
    "f1_binary": f1_binary,
    "auc": auc,
    "perplexity": perplexity,
    "mse": mse,
    "mae": mae,
}
_WITH_LABELS = (accuracy, top5, f1, f1_binary, auc, perplexity)
for _name, _metric in METRICS.items():
    _marked(_metric, higher_is_better=_name not in ("perplexity", "mse", "mae"))


# What evaluation asks about a metric.


def bound(metric: Any, ignored: int | None) -> Any:
    """The metric as it is used with a loss that ignores this label."""
    if ignored is not None and any(metric is one for one in _WITH_LABELS):
        return partial(metric, ignore_index=ignored)
    return metric


def has_state(metric: object) -> bool:
    """Whether a metric is an object that sees the batches one after another."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def seen_by(metric: object, outputs: Any, targets: Any) -> tuple[Any, Any]:
    """What an object's `update` gets. Those of torchmetrics compare tensors."""
    origins = {kind.__module__.partition(".")[0] for kind in type(metric).__mro__}
    return _plain(outputs, targets) if "torchmetrics" in origins else (outputs, targets)


def as_mean(metric: Any) -> tuple[Callable[..., Any], Callable[[float], float]] | None:
    """For a metric that is a mean: what it computes on a batch, and on the mean in the end."""
    options: dict[str, Any] = {}
    while isinstance(metric, partial) and not metric.args:
        options = {**metric.keywords, **options}
        metric = metric.func
    of_batch = getattr(metric, "batch_mean", None)
    if of_batch is None:
        return None
    finish: Callable[[float], float] = getattr(metric, "finish", float)
    return (partial(of_batch, **options) if options else of_batch), finish


def one_number(name: str, value: object) -> float:
    """What a metric returned, as a float. Refuse anything that is not one number."""
    found = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    try:
        if isinstance(found, str | bytes | Tensor | Mapping | None):
            raise TypeError
        return float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ConfigError(
            f"metric {name!r} must return one number, got {_described(value)}: take a mean, or "
            "make one metric of each number"
        ) from None


# What the metrics here accept.


def _plain(outputs: Any, targets: Any) -> tuple[Any, Any]:
    """Tensors, also from a model that returns an object with logits and from a mapping."""
    outputs = getattr(outputs, "logits", outputs)
    if isinstance(outputs, Mapping) and "logits" in outputs:
        outputs = outputs["logits"]
    if isinstance(targets, Mapping) and "labels" in targets:
        targets = targets["labels"]
    return outputs, targets


def _tensors(name: str, outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    outputs, targets = _plain(outputs, targets)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        raise ConfigError(
            f"{name} compares a tensor of outputs with a tensor of targets, got "
            f"{_described(outputs)} and {_described(targets)}: write a metric of your own, a "
            "function of (outputs, targets)"
        )
    return outputs, targets


def _classes(name: str, outputs: Any, targets: Any) -> tuple[Tensor, Tensor, int]:
    """Outputs with one number per class, targets with class numbers, and the axis of classes."""
    outputs, targets = _tensors(name, outputs, targets)
    if targets.is_floating_point() or targets.is_complex():
        raise ConfigError(
            f"{name} needs class numbers as targets, got {targets.dtype}: for a regression take "
            "mse or mae, for one logit per example f1_binary or auc; class numbers must be integers"
        )
    shape, first = tuple(outputs.shape), outputs.shape[:1] + outputs.shape[2:]
    axis = 1 if first == targets.shape else -1
    if outputs.ndim < 2 or (axis == -1 and outputs.shape[:-1] != targets.shape):
        raise ConfigError(
            f"{name} cannot compare outputs {shape} with targets {tuple(targets.shape)}: it needs "
            "outputs (examples, classes) for targets (examples,), or (examples, classes, ...) for "
            "targets (examples, ...); write a metric of your own for other shapes"
        )
    if outputs.shape[axis] < 2:
        raise ConfigError(
            f"{name} needs an output for each class, got outputs {shape} with one: f1_binary and "
            "auc take one logit per example, or write a metric of your own"
        )
    return outputs, targets, axis


def _one_each(outputs: Any, targets: Any) -> bool:
    """Whether there is one output for each target."""
    outputs, targets = _plain(outputs, targets)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return False
    return outputs.shape in (targets.shape, (*targets.shape, 1))


def _scores(name: str, outputs: Any, targets: Any, ignored: int) -> tuple[Tensor, Tensor, Tensor]:
    """One score for each target, the targets 0 and 1, and which of them count."""
    one_each = _one_each(outputs, targets)
    outputs, targets = _tensors(name, outputs, targets)
    if one_each:
        outputs = outputs.reshape(targets.shape)
    else:
        outputs, targets, axis = _classes(name, outputs, targets)
        if outputs.shape[axis] != 2:
            raise ConfigError(
                f"{name} is for two classes, got outputs {tuple(outputs.shape)}: for more, write a "
                "metric of your own, or use one of torchmetrics"
            )
        outputs = outputs.select(axis, 1) - outputs.select(axis, 0)
    kept = targets != ignored
    if not bool(((targets == 0) | (targets == 1) | ~kept).all()):
        other = targets[(targets != 0) & (targets != 1) & kept][0].item()
        raise ConfigError(f"{name} needs targets 0 and 1, got {other}: number the classes 0 and 1")
    return outputs, targets, kept


def _numbers(name: str, outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Outputs and targets of the same shape, as floats."""
    outputs, targets = _tensors(name, outputs, targets)
    if outputs.shape != targets.shape:
        if not _one_each(outputs, targets):
            raise ConfigError(
                f"{name} cannot compare outputs {tuple(outputs.shape)} with targets "
                f"{tuple(targets.shape)}: they need the same shape"
            )
        outputs = outputs.reshape(targets.shape)
    wide = torch.promote_types(outputs.dtype, torch.float32)
    return outputs.to(wide), targets.to(wide)


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return repr(value) if value is None or isinstance(value, str) else f"a {type(value).__name__}"
