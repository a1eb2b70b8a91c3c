"""Which labels count in the mean of a loss or a metric.

Some labels do not count: -100 in torch's cross entropy, or another `ignore_index`. A mean over
several batches must weight each batch by the labels that count. A batch without such labels has no
mean (torch returns NaN). fafed then takes its gradient as zero, and it has no loss.

fafed finds the ignored label if a loss or metric has a parameter or an attribute `ignore_index`,
directly or inside a functools.partial. Examples: F.cross_entropy,
nn.CrossEntropyLoss(ignore_index=0), or your own function with a parameter ignore_index=0. fafed
finds the class weights of torch's cross entropy and nll_loss. It cannot look inside a lambda: there
every example counts.

Batches that are mappings: the labels are batch["labels"]. With loss="model", -100 does not count.
If the model predicts label i + 1 at position i, as the causal language models of transformers do,
the first label of each row does not count either: fafed tries this on the first batch. A batch
without integer labels has the weight of its examples.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

IGNORED = -100  # the label that torch's cross entropy ignores by default


class Averaged(NamedTuple):
    """Which labels count in the mean of a function of (outputs, targets), as far as known."""

    ignored: int | None  # the label that does not count; None: all labels count
    class_weights: Tensor | None

    def weight(self, targets: Tensor, leading: int = 0) -> Tensor | None:
        """The weight of this batch in a mean over several; None if every example counts. `leading`
        dimensions run over several batches, each with its own weight."""
        if self.ignored is None or targets.is_floating_point():
            return None
        kept = targets != self.ignored
        if self.class_weights is not None:
            kept = self.class_weights[targets.where(kept, 0)] * kept
        return kept.flatten(leading).sum(-1)


def averaged(function: Callable[..., object]) -> Averaged:
    settings: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        settings = function.keywords | settings
        function = function.func
    weights = None
    if function in (F.cross_entropy, F.nll_loss):
        weights = settings.get("weight")
    elif isinstance(function, nn.CrossEntropyLoss | nn.NLLLoss):
        weights = function.weight
    ignored = settings.get("ignore_index", getattr(function, "ignore_index", None))
    if ignored is None:
        ignored = _default(function)
    if not isinstance(ignored, int) or isinstance(ignored, bool):
        ignored = None
    return Averaged(ignored, weights)


def _default(function: Callable[..., object]) -> object:
    try:
        return inspect.signature(function).parameters["ignore_index"].default
    except (KeyError, TypeError, ValueError):  # no such parameter, or no signature
        return None
