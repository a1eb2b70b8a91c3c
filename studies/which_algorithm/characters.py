"""A small language model: the next character of Wikipedia's text, one transformer block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fafed.data import Text, load

CLIENTS, WORDS, LENGTH = 10, 20_000, 24  # words of a client, characters of an example
LETTERS = "abcdefghijklmnopqrstuvwxyz0 .,'\n"  # any digit is 0
OTHER = len(LETTERS)

Examples = tuple[Tensor, Tensor]


def clients() -> tuple[list[Examples], Examples]:
    """Each client has a part of WikiText-2's training text, so its own articles."""
    text = load("wikitext-2")
    parts = [text.train[i * WORDS : (i + 1) * WORDS] for i in range(CLIENTS)]
    return [examples(part, text) for part in parts], examples(text.test[:WORDS], text)


def examples(words: Tensor, text: Text) -> Examples:
    """Characters, and for each of them the next one."""
    written = " ".join(text.vocabulary[i] for i in words.tolist()).replace("<eos>", "\n").lower()
    ids = torch.tensor([LETTERS.find("0" if c.isdigit() else c) for c in written])
    ids = torch.where(ids < 0, OTHER, ids)
    count = (len(ids) - 1) // LENGTH
    inputs, targets = (ids[k : k + count * LENGTH].view(count, LENGTH) for k in (0, 1))
    return inputs, targets


class Net(nn.Module):
    """(b, t) -> logits (b, characters, t). Each position sees those before it."""

    def __init__(self, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(OTHER + 1, width)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rise, self.fall = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.decoder = nn.Linear(width, OTHER + 1)

    def forward(self, characters: Tensor) -> Tensor:
        y = self.embedding(characters) + self.position
        y = y + self.mix(self._attend(self.before(y)))
        y = y + self.fall(nn.functional.gelu(self.rise(self.between(y))))
        logits: Tensor = self.decoder(y).movedim(-1, 1)
        return logits

    def _attend(self, y: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).movedim(-2, -3)
            for part in self.attention(y).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        seen: Tensor = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return seen.movedim(-3, -2).flatten(-2)
