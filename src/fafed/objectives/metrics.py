"""Metrics for `fafed.train(metrics=...)`: (outputs, targets) -> mean over the examples.

A metric with a parameter `ignore_index` is a mean over the other labels
(`fafed.objectives.labels`).
"""

from __future__ import annotations

from torch import Tensor


def accuracy(outputs: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    """Share of labels that have the largest output; NaN if all are ignored.

    Outputs are (examples, classes), or (examples, classes, ...) for targets (examples, ...), as in
    F.cross_entropy, or have the classes last. In `fafed.train` the labels that the loss ignores
    are left out. Elsewhere, or if the loss does not tell, those that are `ignore_index`.
    """
    first = outputs.shape[:1] + outputs.shape[2:]
    right = outputs.argmax(1 if first == targets.shape else -1) == targets
    kept = targets != ignore_index
    return (right & kept).sum().double() / kept.sum()
