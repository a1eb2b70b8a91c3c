"""What one silo may do to a run: the server's [bounds], and how often each silo has failed.

    norm = 30.0       times the norm that is usual among the other silos
    examples = 100.0  times the number of examples that is usual among the other silos
    failures = 10     of a silo, and it is left out until the run is started again

The server cannot notice a lie whose numbers have the usual size. The bounds stop one silo from
taking over the run with a single message. They do not make the mean a robust one.

The norm is checked for each vector of a message separately. If a vector has the name and the shape
of one that was sent down (FAFED's x, m and v), the norm is that of the difference. For any other
(an update, a gradient) it is that of the vector itself. The usual norm is the median of the other
silos in this exchange, or the median of the last rounds, whichever is larger. A vector of squares
(FAFED's v) may be norm^2 times the usual, and must not be negative. A message that exceeds a bound
is refused as a whole. Nothing is clipped.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from statistics import median

import torch
from pydantic import Field
from torch import Tensor

from fafed.core import tree
from fafed.experiments.config import Part
from fafed.silos import payload

ROUNDS = 20  # rounds whose norms the server remembers
TINY = 1e-6  # share of the model's norm that is allowed even if no other silo moves


class Bounds(Part):
    norm: float = Field(default=30.0, ge=2, strict=False)
    examples: float = Field(default=100.0, ge=1, strict=False)
    failures: int = Field(default=10, ge=1)


class Guard:
    """Checks the norms of the silos' messages, and remembers those of the last rounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.usual: dict[object, deque[float]] = defaultdict(lambda: deque(maxlen=ROUNDS))
        self.failed: Counter[int] = Counter()  # client -> how often

    def refused(
        self,
        key: object,
        answers: Mapping[int, object],
        down: object,
        squares: Sequence[str] = (),
        products: Sequence[str] = (),
    ) -> dict[int, str]:
        """Client -> reason, for clients whose answers are too large. `key` names the exchange. An
        answer is a message with its buffers, and so is `down`."""
        sent = tree.flatten(down)
        slack = TINY * (1 + _norm(sent["0.x"], None))
        sizes = {client: _sizes(answer, sent) for client, answer in answers.items()}
        found: dict[int, str] = {}
        for name in next(iter(sizes.values()), {}):
            part, _, field = name.partition(".")
            field = field if part == "0" else f"buffer {field}"
            times = self.bounds.norm ** (2 if field in (*squares, *products) else 1)
            column = {client: one[name] for client, one in sizes.items()}
            for client, size in column.items():
                others = [other for who, other in column.items() if who != client]
                usual = max(_median(others), _median(self.usual[key, name]), slack)
                known = others or self.usual[key, name]
                if not math.isfinite(size) or (known and size > times * usual):
                    found[client] = (
                        f"the norm of {field} is {size:.3g}, usual is {usual:.3g}, and the server "
                        f"takes {times:g} times that"
                    )
                if field in squares and _negative(tree.flatten(answers[client])[name]):
                    found[client] = f"{field} holds squares, and some are negative"
        for name in next(iter(sizes.values()), {}):
            kept = [one[name] for client, one in sizes.items() if client not in found]
            if kept:
                self.usual[key, name].append(median(kept))
        return found

    def failure(self, client: int) -> bool:
        """Count a failure of this client. Return whether the client is left out from now on."""
        self.failed[client] += 1
        return self.failed[client] == self.bounds.failures

    def out(self, client: int) -> bool:
        return self.failed[client] >= self.bounds.failures

    def too_many(self, examples: Sequence[int]) -> dict[int, str]:
        """Client -> reason, for clients that claim far more examples than the other clients."""
        found = {}
        for client, count in enumerate(examples):
            others = [other for who, other in enumerate(examples) if who != client]
            if others and count > self.bounds.examples * median(others):
                found[client] = (
                    f"it claims {count} examples, the median of the others is {median(others):g}, "
                    f"and the server takes {self.bounds.examples:g} times that"
                )
        return found


def _sizes(answer: object, sent: Mapping[str, Tensor]) -> dict[str, float]:
    found = {}
    for name, leaf in tree.flatten(answer).items():
        if leaf.numel() and leaf.dtype is not torch.bool:
            start = sent.get(name)
            alike = start is not None and start.shape == leaf.shape
            found[name] = _norm(leaf, start if alike else None)
    return found


def _negative(leaf: Tensor) -> bool:
    return any(bool((part < 0).any()) for part in payload.stretches(leaf))


def _norm(leaf: Tensor, start: Tensor | None) -> float:
    """The norm of leaf - start, in float64, computed piece by piece."""
    total = 0.0
    if start is None:
        for part in payload.stretches(leaf):
            total += _square(part)
    else:
        start = start.to(leaf.device)
        for part, begin in zip(payload.stretches(leaf), payload.stretches(start), strict=True):
            total += _square(part - begin if leaf.is_floating_point() else part.double() - begin)
    return math.sqrt(total)


def _square(part: Tensor) -> float:
    if not part.is_floating_point():
        part = part.double()
    return float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2


def _median(sizes: Sequence[float]) -> float:
    return median(sizes) if sizes else 0.0
