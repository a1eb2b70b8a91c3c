"""Small language models, beside the transformer of studies.which_algorithm.characters: an LSTM, and
adapters of a transformer that has read other articles."""

from __future__ import annotations

from functools import cache

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from fafed.data import load
from studies.which_algorithm import characters

WIDTH = 64
STEPS, BATCH, ETA = 400, 64, 3e-3  # of the base
RANK = 4


class LSTM(nn.Module):
    """(b, t) -> logits (b, characters, t)."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters.OTHER + 1, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.Linear(width, characters.OTHER + 1)

    def forward(self, written: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(written))
        logits: Tensor = self.decoder(states).movedim(-1, 1)
        return logits


@cache
def _read() -> dict[str, Tensor]:
    """The weights of a transformer after some steps of Adam, on articles that no client has."""
    text = load("wikitext-2")
    first = characters.CLIENTS * characters.WORDS
    inputs, targets = characters.examples(text.train[first : 2 * first], text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = characters.Net(WIDTH)
        optimiser = torch.optim.Adam(model.parameters(), ETA)
        for _ in range(STEPS):
            some = torch.randint(len(inputs), (BATCH,))
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[some]), targets[some])
            torch.autograd.backward(loss)
            optimiser.step()
    return model.state_dict()


def adapted(rank: int = RANK) -> nn.Module:
    """That transformer with LoRA adapters. Only they are trained, and only they travel."""
    base = characters.Net(WIDTH)
    base.load_state_dict(_read())
    layers = ["attention", "mix", "rise", "fall"]
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers)
    model: nn.Module = get_peft_model(base, adapters)
    return model
