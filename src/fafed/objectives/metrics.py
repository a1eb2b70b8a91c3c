"""Metrics for `fafed.train(metrics=...)`: (outputs, targets) -> mean over the examples.

A metric with a parameter `ignore_index` is a mean over all other labels
(`fafed.objectives.labels`).
"""

from __future__ import annotations

from torch import Tensor


def accuracy(outputs: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    """The share of labels whose class has the largest output; NaN if all labels are ignored.

    Outputs are (examples, classes), or (examples, classes, ...) for targets (examples, ...), as in
    F.cross_entropy, or have the classes last. `fafed.train` leaves out the labels that the loss
    ignores. Elsewhere, or if the loss has no such label, `ignore_index` is left out.
    """
    first = outputs.shape[:1] + outputs.shape[2:]
    right = outputs.argmax(1 if first == targets.shape else -1) == targets
    kept = targets != ignore_index
    return (right & kept).sum().double() / kept.sum()
