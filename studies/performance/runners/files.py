"""The files between the benchmark and a runner: a folder with the task, one for the answer.

Arrays are .npy files, mapped and not copied, so that the processes of one contender share them;
everything else is JSON. Nothing here imports fafed or torch: contenders use it in their own
environments, and some of these have no torch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMES = ("x0", "inputs", "targets", "warm", "rows")


def about(folder: Path) -> dict[str, Any]:
    """The model, its options, eta, the number of timed rounds and of clients."""
    return dict(json.loads((folder / "task.json").read_text()))


def mapped(folder: Path, name: str) -> NDArray[Any]:
    # "c": copy on write, or torch would warn of memory that it must not write
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))


def arguments(**defaults: Any) -> argparse.Namespace:
    """The command line of a runner: two folders, when it was started, and its own settings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", type=Path)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--began", type=float, default=time.time())
    parser.add_argument("--threads", type=int, default=1)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()


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

    def answer(self, folder: Path, x: Any, **more: Any) -> None:
        np.save(folder / "x.npy", np.asarray(x, dtype=np.float32), allow_pickle=False)
        found = {"seconds": self.seconds, "startup": self.ends[0] - self.began, **more}
        (folder / "answer.json").write_text(json.dumps(found))
