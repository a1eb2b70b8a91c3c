"""The files between the benchmark and a runner: a folder with the task, one for the answer.

Arrays are .npy files, mapped and not copied, so that the processes of one contender share them;
everything else is JSON. Nothing here imports fafed: contenders use it in their own environments.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    about = json.loads((folder / "task.json").read_text())
    names = ("x0", "inputs", "targets", "warm", "rows")
    arrays: dict[str, Any] = {name: array(folder, name) for name in names}
    return Task(**about, **arrays, folder=folder)


def array(folder: Path, name: str) -> Tensor:
    # "c": copy on write, or torch would warn of memory that it must not write
    return torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))


def arguments(**defaults: Any) -> argparse.Namespace:
    """The command line of a runner: two folders, when it was started, and its own settings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", type=Path)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--began", type=float, default=time.time())
    parser.add_argument("--threads", type=int, default=1)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    found = parser.parse_args()
    torch.set_num_threads(found.threads)
    return found


class Clock:
    """Records the end of every round, including the warm-up."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.ends: list[float] = []

    def lap(self) -> None:
        self.ends.append(time.time())

    @property
    def seconds(self) -> list[float]:
        return [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]

    def answer(self, folder: Path, x: Tensor | np.ndarray, **more: Any) -> None:
        np.save(folder / "x.npy", np.asarray(x, dtype=np.float32), allow_pickle=False)
        found = {"seconds": self.seconds, "startup": self.ends[0] - self.began, **more}
        (folder / "answer.json").write_text(json.dumps(found))
