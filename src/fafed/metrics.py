"""Metrics for `fafed.train(metrics=...)`: (outputs, targets) -> mean over the examples."""

from __future__ import annotations

from torch import Tensor


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of examples whose largest output is the target class."""
    return (outputs.argmax(-1) == targets).double().mean()
