"""Means that do more with a client's answer than add it up: secure, private and compressed ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fafed.core.tree import Tree
from fafed.engines.base import Sent
from fafed.engines.mean import Mean


class Answers(NamedTuple):
    """What some clients answer. The first dimension of every leaf runs over the clients."""

    clients: Sequence[int]
    sent: Sent
    losses: Tensor
    has_loss: Tensor
    evaluations: int  # of each client
    samples: int
    owed: Tree = ()  # what compression has left out of earlier messages


class AnsweredMean(Mean[Sent], ABC):
    """A back end gives it the answers of a group. The engine merges the groups."""

    owed: Tree = ()  # by the clients that have answered last, one entry per client

    @abstractmethod
    def for_group(self, clients: Sequence[int]) -> AnsweredMean:
        """An empty one for some of the clients."""

    @abstractmethod
    def answer(self, answers: Answers) -> None:
        """Add the answers of some clients."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The bytes of one client's answer when sent."""
