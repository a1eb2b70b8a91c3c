"""Code on a silo of the Flower tests: a model, and a silo that goes bad when it is told to.

FLOWER_ORDERS is a folder; the file with the name of the silo holds its order: "sleep" (until the
file is gone), or what to spoil in its answers: "nan", "shape", "round".
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import numpy as np
from torch import nn

from fafed.silos import messages

FILE = Path(os.environ.get("FLOWER_ORDERS", "/nowhere")) / os.environ.get("FLOWER_SILO", "nobody")


def order() -> str:
    return FILE.read_text() if FILE.is_file() else ""


class Obedient(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        while self.training and order() == "sleep":
            time.sleep(0.1)
        return self.linear(x)


def spoilt(kind, place, facts, packed, honest=messages.write):
    if kind == "answer" and order() == "round":
        place = place._replace(round=place.round + 1)
    if kind == "answer" and order() == "shape":
        table = [[name, dtype, [1, *shape]] for name, dtype, shape in packed.table]
        packed = packed._replace(table=table)
    if kind == "answer" and order() == "nan":
        numbers = np.frombuffer(packed.body, np.float32).copy()
        numbers[0] = np.nan
        digest = hashlib.sha256(numbers.tobytes()).hexdigest()
        packed = packed._replace(body=bytearray(numbers.tobytes()), digest=digest)
    return honest(kind, place, facts, packed)


if "FLOWER_SILO" in os.environ:  # in a process of the federation, not in the tests'
    messages.write = spoilt
