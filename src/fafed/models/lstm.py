"""The word-level language model that the experiments of FAFED use on WikiText-2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fafed.errors import ConfigError
from fafed.kernels.vocabulary import decoded_cross_entropy, token_cross_entropy
from fafed.models.options import positive

State = tuple[Tensor, Tensor]  # hidden and cell, each (layers, b, hidden)


class LSTMLanguageModel(nn.Module):
    """Tokens (b, t) and a state -> logits (b, t, vocabulary) and the next state. With targets it
    returns the loss in place of the logits.

    Embedding and decoder do not share weights: 50,065,078 parameters by default. Each layer is an
    nn.LSTM of its own. So the dropout between layers is an ordinary call, and fafed can draw its
    mask for a batch. nn.LSTM has no batching rule: this model does not run under vmap.
    """

    computes = staticmethod(token_cross_entropy)  # the loss that it computes itself

    def __init__(
        self,
        vocabulary: int = 33_278,
        embedding: int = 650,
        hidden: int = 650,
        layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        positive(
            "LSTMLanguageModel",
            vocabulary=vocabulary,
            embedding=embedding,
            hidden=hidden,
            layers=layers,
        )
        if not 0 <= dropout < 1:
            raise ConfigError(f"LSTMLanguageModel.dropout must be in [0, 1), got {dropout!r}")
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.layers = nn.ModuleList(
            nn.LSTM(hidden if i else embedding, hidden, batch_first=True) for i in range(layers)
        )
        self.decoder = nn.Linear(hidden, vocabulary)
        self.dropout = nn.Dropout(dropout)
        self.hidden = hidden
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def initial_state(self, batch_size: int) -> State:
        zeros = self.decoder.weight.new_zeros(len(self.layers), batch_size, self.hidden)
        return zeros, zeros.clone()

    def forward(
        self, tokens: Tensor, state: State, targets: Tensor | None = None
    ) -> tuple[Tensor, State]:
        x = self.dropout(self.embedding(tokens))
        hidden, cell = [], []
        for layer, h, c in zip(self.layers, *state, strict=True):
            x, (h, c) = layer(x, (h[None], c[None]))
            x = self.dropout(x)
            hidden.append(h)
            cell.append(c)
        state = torch.cat(hidden), torch.cat(cell)
        if targets is None:
            return self.decoder(x), state
        return decoded_cross_entropy(x, self.decoder.weight, self.decoder.bias, targets), state
