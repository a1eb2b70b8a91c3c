"""Code on a silo that has gone bad: `BAD_SILO` says which, and each round has its own attack."""

from __future__ import annotations

import hashlib
import json
import os
import sys

import numpy as np
from torch import nn

from fafed.silos.messages import Message
from fafed.silos.worker import Worker

NAME = os.environ.get("BAD_SILO", "")


class Net(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)


def said(head, body, **changes):
    head |= changes | {"sha256": hashlib.sha256(body).hexdigest()}
    return Message(json.dumps(head).encode(), body)


def nothing(head, **facts):
    return said(head | {"facts": facts, "tensors": []}, b"")


def spoilt(self, request, honest=Worker.handle):
    answer = honest(self, request)
    head, body = json.loads(answer.head), bytes(answer.body)
    if self.name != NAME or head["kind"] != "answer":
        return answer
    numbers = np.frombuffer(body, np.float32)
    attacks = {
        2: lambda: Message(b" " * 3_000_000 + answer.head, body),
        3: lambda: said(head, (-1000 * numbers).tobytes()),
        4: lambda: said(head, (0 * numbers + 3e38).astype(np.float32).tobytes()),
        5: lambda: nothing(head | {"kind": "diverged"}, what="loss"),
        6: lambda: nothing(head | {"kind": "lost"}),
        7: lambda: nothing(head | {"kind": "refused"}, why="no\n2026-01-01 INFO all is well"),
    }
    return attacks.get(head["round"], lambda: answer)()


if "client" in " ".join(sys.argv):  # in a silo's process, not in the tests'
    Worker.handle = spoilt
