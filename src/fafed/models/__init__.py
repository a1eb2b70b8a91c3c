"""Models by name: one file per architecture."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fafed.core import plugins
from fafed.errors import ConfigError, nearest
from fafed.kernels.vocabulary import token_cross_entropy
from fafed.models.char_lstm import CharLSTM
from fafed.models.cifar_cnn import CifarCNN
from fafed.models.fashion_cnn import FashionCNN
from fafed.models.femnist_cnn import FemnistCNN
from fafed.models.lstm import LSTMLanguageModel
from fafed.models.mlp import MLP
from fafed.models.mnist_cnn import MnistCNN
from fafed.models.resnet_gn import ResNetGN
from fafed.models.softmax import SoftmaxRegression
from fafed.models.standardise import Standardise

MODELS: dict[str, type[nn.Module]] = {
    "mnist-cnn": MnistCNN,
    "fashion-cnn": FashionCNN,
    "cifar-cnn": CifarCNN,
    "femnist-cnn": FemnistCNN,
    "resnet-gn": ResNetGN,
    "lstm": LSTMLanguageModel,
    "char-lstm": CharLSTM,
    "mlp": MLP,
    "softmax": SoftmaxRegression,
}


def build(name: str, *, seed: int | None = None, **options: Any) -> nn.Module:
    """A model by its name, or the user's own as "module:Class".

    With a seed the initialisation is a function of the seed, and the global random state does not
    change.
    """
    what = f"model {name!r}"
    if ":" in name:
        create = plugins.find(name, "model")
        if not callable(create):
            raise ConfigError(f"{what} is a {type(create).__name__}, not a class or function")
    elif name in MODELS:
        create = MODELS[name]
    else:
        raise ConfigError(
            f"no model is called {name!r}; {nearest(name, MODELS)}; your own is 'module:Class'"
        )
    plugins.check_options(create, options, what)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # of the CPU, where models are built
        model = create(**options)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{what} made a {type(model).__name__}, it must make an nn.Module")
    return model


__all__ = [
    "MODELS",
    "Standardise",
    "build",
    "token_cross_entropy",
    *(cls.__name__ for cls in MODELS.values()),
]
