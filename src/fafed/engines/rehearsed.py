"""The messages of an algorithm, found without data."""

from __future__ import annotations

import torch
from torch import Tensor

from fafed.core import tree
from fafed.core.algorithm import AnyAlgorithm, HasX, RoundInfo, exchanges_of_round
from fafed.core.tree import Tree
from fafed.engines.private_mean import visit_without_data
from fafed.errors import ConfigError


def messages_of_second_round(
    algorithm: AnyAlgorithm, x: Tensor, steps: int, population: int
) -> list[Tree]:
    """The shapes of the messages in every round but the first, in a rehearsal without data."""
    try:  # without numbers it costs nothing
        return _rehearsed(algorithm, x.to("meta"), steps, population)
    except (RuntimeError, NotImplementedError):  # the algorithm needs numbers
        return _rehearsed(algorithm, torch.zeros_like(x), steps, population)


def _rehearsed(algorithm: AnyAlgorithm, x: Tensor, steps: int, population: int) -> list[Tree]:
    shared: HasX = algorithm.init(x)
    local: Tree = algorithm.join(x)
    found: list[Tree] = []
    for opening in (True, False):
        found = []
        for exchange in exchanges_of_round(algorithm, opening=opening):
            local, message = visit_without_data(exchange, exchange.send(shared), local, steps)
            made = steps if "round" in exchange.draw else 0
            shared = exchange.server(shared, message, RoundInfo(population, population, made, 1.0))
            found.append(message)
            _refuse_what_cannot_be_compressed(type(algorithm).__name__, message)
    return found


def _refuse_what_cannot_be_compressed(name: str, message: Tree) -> None:
    if len(tree.leaves(message)) and not isinstance(message, tuple | Tensor):
        raise ConfigError(
            f"{name} sends a {type(message).__name__}, which wire cannot compress: leave out wire, "
            "or send a NamedTuple of tensors"
        )
    for field, leaf in tree.flatten(message).items():
        if leaf.is_complex():
            raise ConfigError(
                f"{name} sends complex numbers ({field}), which wire cannot compress: leave out "
                "wire, or send their parts as two vectors"
            )
