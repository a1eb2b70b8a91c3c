"""A task as tensors, for the runners that use torch. The files are described in `files`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from studies.performance.runners import files
from studies.performance.runners.files import Clock

__all__ = ["Batch", "Clock", "Task", "arguments", "array", "read"]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A run of FedAvg: rounds of local steps on given rows.

    Round 0 is the warm-up, with one step on each client.
    """

    model: str
    options: dict[str, Any]
    eta: float
    rounds: int  # timed ones
    clients: int
    x0: Tensor
    inputs: Tensor
    targets: Tensor
    warm: Tensor  # (clients, 1, b)
    rows: Tensor  # (rounds, clients, q, b)
    folder: Path

    def steps(self, round: int) -> Tensor:
        """(clients, steps, b)"""
        return self.rows[round - 1] if round else self.warm

    def batches(self, round: int, client: int) -> Iterator[Batch]:
        for rows in self.steps(round)[client]:
            yield self.inputs[rows], self.targets[rows]

    def block(self, round: int, client: int) -> Batch:
        """All batches of a client's round, one after another."""
        rows = self.steps(round)[client].flatten()
        return self.inputs[rows], self.targets[rows]

    @property
    def batch_size(self) -> int:
        return self.warm.shape[2]


def read(folder: Path) -> Task:
    arrays: dict[str, Any] = {name: array(folder, name) for name in files.NAMES}
    return Task(**files.about(folder), **arrays, folder=folder)


def array(folder: Path, name: str) -> Tensor:
    return torch.from_numpy(files.mapped(folder, name))


def arguments(**defaults: Any) -> argparse.Namespace:
    """The command line of a runner, with torch's threads set to what it says."""
    found = files.arguments(**defaults)
    torch.set_num_threads(found.threads)
    return found
