"""Code on a silo: a model that takes its time, and a silo that has gone bad when a file says so."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from torch import nn

from fafed.silos.messages import Message
from fafed.silos.worker import Worker

PAUSE = float(os.environ.get("SLOW_SILO", "0"))
BAD = Path(os.environ.get("BAD_SILO", "/nowhere"))  # holds the name of the silo


class Slow(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        if self.training:
            time.sleep(PAUSE)
        return self.linear(x)


def spoilt(self, request, honest=Worker.handle):
    answer = honest(self, request)
    head = json.loads(answer.head)
    if head["kind"] != "answer" or not BAD.is_file() or BAD.read_text() != self.name:
        return answer
    body = np.frombuffer(answer.body, np.float32).copy()
    body[0] = np.nan
    head["sha256"] = hashlib.sha256(body.tobytes()).hexdigest()
    return Message(json.dumps(head).encode(), body.tobytes())


if "client" in " ".join(sys.argv):  # in a silo's process, not in the tests'
    Worker.handle = spoilt
