"""What a loss or a metric takes its mean over.

Some labels take no part in a mean: -100 in torch's cross entropy, or another `ignore_index`. Means
over several batches must weigh each batch by the labels that took part. A batch without any has
no mean (torch says NaN): its gradient is taken as zero, and its loss as not there.

fafed knows the ignored label of whatever has a parameter or an attribute `ignore_index`, itself or
inside a functools.partial: F.cross_entropy, nn.CrossEntropyLoss(ignore_index=0), a function of your
own with a parameter ignore_index=0. Class weights are known of torch's cross entropy and nll_loss.
What a lambda does inside is not known: then every example counts.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F


class Averaged(NamedTuple):
    """What a function of (outputs, targets) takes its mean over, as far as it is known."""

    ignored: int | None  # a label that takes no part; None if there is none
    class_weights: Tensor | None

    def weight(self, targets: Tensor, leading: int = 0) -> Tensor | None:
        """What the mean over these targets weighs among others; None if every example counts.
        Leading dimensions are those of several batches, each with a mean of its own."""
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
    except (KeyError, TypeError, ValueError):  # it has none, or does not tell
        return None
