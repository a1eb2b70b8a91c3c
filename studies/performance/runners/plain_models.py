"""The models as a researcher writes them; the same parameters in the same order as fafed's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.performance.runners import large_models


class FashionCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, 3)
        self.conv2 = nn.Conv2d(5, 10, 3)
        self.fc1 = nn.Linear(10 * 5 * 5, 100)
        self.fc2 = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.tanh(self.conv1(x)), 2)
        x = F.max_pool2d(torch.tanh(self.conv2(x)), 2)
        x = torch.tanh(self.fc1(x.flatten(1)))
        return self.fc2(x)


class CifarCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 4 * 4, 512)
        self.fc2 = nn.Linear(512, 64)
        self.fc3 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.max_pool2d(F.relu(self.conv3(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class MLP(nn.Module):
    def __init__(
        self, inputs: int = 784, hidden: Sequence[int] = (200,), outputs: int = 10
    ) -> None:
        super().__init__()
        (width,) = hidden
        self.fc1 = nn.Linear(inputs, width)
        self.fc2 = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Softmax(nn.Module):
    def __init__(self, inputs: int = 784, outputs: int = 10) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


class LanguageModel(nn.Module):
    """Carries its recurrent state from one batch to the next, until `begin`."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(hidden, vocabulary)
        self.state: tuple[Tensor, Tensor] | None = None

    def begin(self) -> None:
        self.state = None

    def forward(self, tokens: Tensor) -> Tensor:
        x, (h, c) = self.lstm(self.embedding(tokens), self.state)
        self.state = h.detach(), c.detach()
        return self.decoder(x)


MODELS: dict[str, Any] = {
    "fashion-cnn": FashionCNN,
    "cifar-cnn": CifarCNN,
    "mlp": MLP,
    "softmax": Softmax,
    "lstm": LanguageModel,
}


def build(name: str, options: dict[str, Any], x: Tensor) -> nn.Module:
    known = MODELS | {large_models.PREFIX + own: make for own, make in large_models.MODELS.items()}
    module: nn.Module = known[name](**options)
    load(module, x)
    return module


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def state(module: nn.Module) -> dict[str, Tensor]:
    """What travels: a frozen base stays where it is."""
    return {name: p.detach() for name, p in trained(module).items()}


def load(module: nn.Module, x: Tensor) -> None:
    torch.nn.utils.vector_to_parameters(x.clone(), trained(module).values())


def vector(module: nn.Module) -> Tensor:
    return torch.nn.utils.parameters_to_vector(trained(module).values()).detach()


def begin(module: nn.Module) -> None:
    """A client starts its round."""
    if isinstance(module, LanguageModel):
        module.begin()


def loss(module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    outputs = module(inputs)
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())
