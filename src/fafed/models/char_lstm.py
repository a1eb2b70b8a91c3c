"""The LSTM that LEAF has for Shakespeare (https://arxiv.org/abs/1812.01097)."""

from __future__ import annotations

from torch import Tensor, nn

from fafed.models.options import positive


class CharLSTM(nn.Module):
    """Characters (b, t) -> logits (b, vocabulary) of the next one; 819,920 parameters.

    nn.LSTM has no batching rule: this model does not run under vmap.
    """

    def __init__(
        self, vocabulary: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2
    ) -> None:
        super().__init__()
        positive(
            "CharLSTM", vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers
        )
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        logits: Tensor = self.decoder(states[:, -1])
        return logits
