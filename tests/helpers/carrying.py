"""A small recurrent model with a buffer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Carrying(nn.Module):
    """Recurrent, with BatchNorm and dropout: everything there is to remember."""

    def __init__(self):
        super().__init__()
        self.w, self.norm, self.out = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def initial_state(self, batch_size):
        return (torch.zeros(batch_size, 5), (torch.zeros(batch_size, 5),))

    def forward(self, x, state):
        h, (s,) = state
        h = torch.tanh(self.norm(self.w(x)) + F.dropout(h, training=self.training) + s)
        return self.out(h), (h, (s + 1,))
