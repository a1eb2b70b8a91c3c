"""Text as each client reads it: its part of the token stream, in order, cut into b columns.

Step t reads the next `bptt` tokens of every column and predicts the successor of each. A model's
recurrent state goes from step to step, and starts again with each pass over the part. An anchor
holds the windows from the current step on, with its own dropout masks and a new state. Tokens at
the end of a part that do not fill a column or a whole window are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fafed.core import randomness
from fafed.core.arguments import checked
from fafed.core.batch import Batch, Draw
from fafed.core.hyper import integer
from fafed.core.plain import plain
from fafed.data.sources.base import Drawn, Draws, Indices, Source
from fafed.errors import ConfigError


class Streams(Source):
    """A `Source` of contiguous text."""

    def __init__(
        self,
        tokens: Tensor,
        parts: Sequence[Indices],
        *,
        batch_size: int,
        bptt: int = 35,
        anchor_size: int | None = None,
        seed: int = 0,
    ) -> None:
        batch_size = plain(batch_size)
        anchor_size = batch_size if anchor_size is None else plain(anchor_size)
        for name, size in (("batch_size", batch_size), ("opening_batch_size", anchor_size)):
            if not integer(1).allows(size):
                raise ConfigError(f"{name} must be a positive integer for text, got {size!r}")
        self.tokens = tokens
        self.starts = [int(part[0]) for part in parts]
        self.examples = tuple(len(part) for part in parts)
        self.batch_size = batch_size
        self.bptt = bptt
        self.anchor_size = anchor_size
        self.seed = checked("seed", seed)
        shortest = min(self.examples)
        if self._windows(shortest) < 1:
            raise ConfigError(
                f"a client's {shortest} tokens do not fill one batch of {batch_size} columns x "
                f"{bptt} tokens: use fewer clients, a smaller batch_size or a smaller bptt"
            )

    @property
    def units(self) -> int:
        return self.batch_size

    @property
    def epoch_steps(self) -> int:
        return self._windows(min(self.examples))

    def to(self, device: torch.device, dtype: torch.dtype) -> Streams:
        self.tokens = self.tokens.to(device)
        return self

    def gather(self, drawn: Drawn) -> tuple[Tensor, Tensor]:
        return self.tokens[drawn.rows], self.tokens[drawn.rows + 1]

    def stackable(self, kinds: Sequence[Draw]) -> bool:
        return "full" not in kinds or len(set(self.examples)) == 1

    def draw(self, kinds: Sequence[Draw], client: int, step: int, steps: int) -> Draws:
        windows, b = self._windows(self.examples[client]), self.batch_size
        at = np.arange(step, step + steps)
        once, zero = at[:1], np.zeros(1, dtype=np.int64)
        drawn: dict[str, Drawn] = {}
        if "round" in kinds:
            place = at % windows
            drawn["round"] = self._drawn("round", client, at, np.arange(b), place[:, None], place)
        if "anchor" in kinds:
            k = np.arange(self.anchor_size)
            window = (step + k // b) % windows
            drawn["anchor"] = self._drawn("anchor", client, once, k % b, window, zero)
        if "full" in kinds:
            k = np.arange(windows * b)
            drawn["full"] = self._drawn("full", client, once, k % b, k // b, zero)
        return Draws(*(drawn.get(kind, ()) for kind in ("round", "anchor", "full")))

    def _drawn(
        self,
        kind: str,
        client: int,
        at: Indices,
        column: Indices,
        window: Indices,
        place: Indices,
    ) -> Drawn:
        height = self.examples[client] // self.batch_size
        first = self.starts[client] + column * height + window * self.bptt
        rows = np.broadcast_to(first, (len(at), len(column)))[..., None] + np.arange(self.bptt)
        key = randomness.keys(f"masks {kind}", self.seed, client, at + 1)
        drawn = torch.from_numpy(rows), randomness.tensor(key), torch.from_numpy(place == 0)
        return Drawn(*(part.to(self.tokens.device) for part in drawn))

    def _windows(self, tokens: int) -> int:
        return (tokens // self.batch_size - 1) // self.bptt


def passage(tokens: Tensor, columns: int = 20, bptt: int = 35) -> Iterator[Batch]:
    """A held-out text from its beginning to its end, for evaluation."""
    height = len(tokens) // columns
    grid = tokens[: height * columns].reshape(columns, height)
    key = torch.zeros((), dtype=torch.int64)
    for i in range(0, height - 1, bptt):
        n = min(bptt, height - 1 - i)
        fresh = torch.tensor(i == 0, device=tokens.device)
        yield Batch((grid[:, i : i + n], grid[:, i + 1 : i + 1 + n]), key, fresh)
